"""What a check says: what is wrong, where, what it costs and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ..api.faults import printable
from ..redaction import redact


class Severity(StrEnum):
    """How much a finding matters. Only an error makes the command's exit status 1."""

    ERROR = "error"
    """Requests fail, or KV is lost or wrong, now or with the next pod."""
    WARNING = "warning"
    """It serves, and slower, less safely or with less room than it could."""
    INFO = "info"
    """Worth knowing, or something that could not be looked at."""


_ORDER = tuple(Severity)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or worth knowing.

    ``check`` is its stable name, ``where`` a field, a pod or another object. ``why`` says what it costs, ``fix`` what
    to do. No text holds the value of a Secret or of a user's variable.
    """

    severity: Severity
    check: str
    where: str
    what: str
    why: str
    fix: str
    brief: str = ""
    """The way out for people, where the whole of it is too long to be read."""

    def to_json(self) -> dict[str, str]:
        """Plain JSON data, fit to be shown."""
        return {
            "severity": self.severity.value,
            "check": self.check,
            "where": shown(self.where),
            "what": shown(self.what),
            "why": shown(self.why),
            "fix": shown(self.fix),
        }


def error(check: str, where: str, what: str, *, why: str, fix: str) -> Finding:
    """A finding of severity error."""
    return Finding(Severity.ERROR, check, where, what, why, fix)


def warning(check: str, where: str, what: str, *, why: str, fix: str) -> Finding:
    """A finding of severity warning."""
    return Finding(Severity.WARNING, check, where, what, why, fix)


def info(check: str, where: str, what: str, *, why: str, fix: str) -> Finding:
    """A finding of severity info."""
    return Finding(Severity.INFO, check, where, what, why, fix)


def shown(text: str) -> str:
    """``text`` in one line, without what looks like a credential."""
    return printable(redact(text))


def ordered(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """``found``, each once, the worst first; those of one severity in the order of the checks."""
    return tuple(sorted(dict.fromkeys(found), key=lambda finding: _ORDER.index(finding.severity)))


def failed(found: Iterable[Finding]) -> bool:
    """Whether there is an error among ``found``."""
    return any(finding.severity is Severity.ERROR for finding in found)
