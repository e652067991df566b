"""Signed texts of verification: the probe mark and the signature on transfer parameters.

Both are HMAC-SHA256 under the service's signing key. The engines hold the same key, so a
mark shows an engine that the operator asks, and a signature shows the operator (and
decode) that a prefill engine of the service made the parameters.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MARK_FIELD = "kvserving_probe"
SIGNATURE_FIELD = "kvserving_signature"
_UNSIGNED_FIELDS = (SIGNATURE_FIELD, "remote_prefill_cached_tokens")
"""vLLM adds the second one to the parameters after the connector has signed them."""


def keys_of(text: str) -> tuple[bytes, ...]:
    """Return the keys of a key file: its first line signs, every line verifies.

    Raises ``ValueError`` when the text holds no key or more than two.
    """
    lines = tuple(line.strip().encode("ascii") for line in text.splitlines() if line.strip())
    if not 1 <= len(lines) <= 2:
        raise ValueError(f"a signing key file has one or two lines, this one has {len(lines)}")
    return lines


def probe_mark(key: bytes, revision: str, expiry: int, nonce: str) -> str:
    """Return the mark that makes a decode engine of ``revision`` answer with a receipt.

    ``expiry`` is in seconds since the epoch; ``nonce`` is 16 hex digits, fresh per probe.
    """
    mac = _mac(key, f"kvserving-probe\n{revision}\n{expiry}\n{nonce}")
    return f"v1.{expiry}.{nonce}.{mac}"


@dataclass(frozen=True)
class Signature:
    """The signature that came with transfer parameters.

    ``revision`` is what the signer claims to run; it is proved only where ``valid``.
    """

    revision: str
    expiry: int
    valid: bool


def signature_of(params: Mapping[str, Any], keys: tuple[bytes, ...]) -> Signature | None:
    """Return the signature of ``params``, checked under any of ``keys``; ``None`` when there is none.

    A text that is not a signature of version 1 is a signature that is not valid.
    """
    text = params.get(SIGNATURE_FIELD)
    if text is None:
        return None
    parts = str(text).split(".")
    if len(parts) != 4 or parts[0] != "v1" or not parts[2].isdecimal():
        return Signature(revision="", expiry=0, valid=False)
    _, revision, expiry, mac = parts
    rest = {name: value for name, value in params.items() if name not in _UNSIGNED_FIELDS}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    signed = f"kvserving-params\n{revision}\n{expiry}\n{canonical}"
    valid = any(hmac.compare_digest(_mac(key, signed), mac) for key in keys)
    return Signature(revision=revision, expiry=int(expiry), valid=valid)


def _mac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
