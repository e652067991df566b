"""What looks like a credential is masked before people read it. Regular expressions alone: everything may import it."""

from __future__ import annotations

import re

_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}"
    r"|AKIA[0-9A-Z]{12,}|xox[abprs]-[\w-]{8,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_NAMED = re.compile(
    r"(?i)\b([\w-]*(?:password|passwd|secret|token|api[-_]?key)[\w-]*['\"]?)(=['\"]?|:\s*['\"]|:(?=\S))[^\s,;'\"]{4,}"
)
_USERINFO = re.compile(r"(://)[^/\s@]+@")
MASK = "***"


def redact(text: str) -> str:
    """Return ``text`` with everything that looks like a credential replaced by ``***``."""
    text = _SHAPES.sub(MASK, text)
    text = _BEARER.sub(rf"\1 {MASK}", text)
    text = _NAMED.sub(rf"\1\2{MASK}", text)
    return _USERINFO.sub(rf"\1{MASK}@", text)
