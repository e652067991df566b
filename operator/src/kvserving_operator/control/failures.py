"""What an answer of the apiserver means for the object: a reason, a sentence, and whether to try again. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..reasons import Reason
from ..redaction import redact

_MOST_FIELDS = 8
# As the apiserver's authorizers word it: User "x" cannot patch resource "services"; user "x" is attempting to grant ...
_UNAUTHORISED = re.compile(r"cannot \w+ (?:resource|path) |attempting to grant RBAC permissions")
_CLAIM_SIZE = "spec.resources.requests.storage"


@dataclass(eq=False)
class ApiFailure(Exception):
    """A request that was answered with an error, or not at all (``status`` 0).

    ``what`` says which request it was. ``retry_after`` is in seconds, 0 where the server named none.
    The message is the server's own and may quote values: show ``describe`` instead.
    """

    status: int
    reason: str
    message: str
    what: str
    details: Mapping[str, Any]
    retry_after: float = 0.0

    def __str__(self) -> str:
        return f"{self.what}: {self.status} {self.reason}"

    @property
    def missing(self) -> bool:
        """Whether the object is not there (and not: whether its kind is not)."""
        return self.status == 404 and self.reason == "NotFound" and bool(self.details.get("name"))

    @property
    def kind_missing(self) -> bool:
        """Whether the cluster has no such kind."""
        return self.status == 404 and not self.details.get("name")


@dataclass(frozen=True)
class Problem:
    """What keeps one child from being as planned.

    ``again``: trying again may help although nothing in the spec changes. ``retry_after``: no
    earlier than that, in seconds.
    """

    reason: Reason
    message: str
    again: bool = True
    retry_after: float = 0.0
    terminating: bool = False
    """Whether it is that the namespace is being deleted."""


def problem(failure: ApiFailure) -> Problem:
    """Return what ``failure`` of a write means."""
    sentence = describe(failure)
    again, after = True, failure.retry_after
    match failure.status:
        case 409:
            return Problem(Reason.CONFLICT, sentence, again, after)
        case 403 if _quota(failure):
            return Problem(Reason.QUOTA_EXCEEDED, sentence, again, max(after, 5.0))
        case 403 if _terminating(failure):
            return Problem(Reason.APPLY_FAILED, sentence, again, max(after, 5.0), terminating=True)
        case _ if _denied(failure):
            return Problem(Reason.APPLY_FAILED, sentence, again, max(after, 5.0))
        case 401 | 403:
            return Problem(Reason.FORBIDDEN, sentence, again, max(after, 5.0))
        case 404 if failure.kind_missing:
            return Problem(Reason.KIND_MISSING, sentence, again, max(after, 5.0))
        case 400 | 413 | 415 | 422:
            return Problem(Reason.APPLY_FAILED, sentence, again=False)
        case _:
            return Problem(Reason.API_UNAVAILABLE, sentence, again, after)


def named(kind: str, name: str, found: Problem) -> str:
    """The problem with a child or a Secret, which is named once: some sentences begin with it."""
    begins = re.match(rf"{re.escape(kind)} (?:\S+/)?{re.escape(name)}\s", found.message)
    return found.message if begins else f"{kind} {name}: {found.message}"


def describe(failure: ApiFailure) -> str:
    """Return a sentence about ``failure`` that quotes no value of any field, but for what a policy says of one."""
    match failure.status:
        case 0:
            return f"{failure.what}: the apiserver did not answer ({failure.reason})"
        case 409:
            return f"{failure.what}: the object changed meanwhile or another manager owns a field{_fields(failure)}"
        case 403 if _quota(failure):
            return f"{failure.what}: {redact(failure.message)}: raise the quota or lower the spec"
        case 401:
            return f"{failure.what}: the apiserver does not accept the operator's credentials"
        case 403 if _terminating(failure):
            return f"{failure.what}: the namespace is being deleted"
        case _ if _denied(failure):
            return f"{failure.what}: a policy of the cluster refuses it: {redact(failure.message)}"
        case 403:
            return f"{failure.what}: forbidden: grant the operator this verb (see its RBAC manifests)"
        case 404 if failure.kind_missing:
            return f"{failure.what}: the cluster has no such kind: install its CRD"
        case 404:
            return f"{failure.what}: not found"
        case 400 | 413 | 415 | 422:
            return f"{failure.what}: refused as invalid{_fields(failure)}"
        case 429:
            return f"{failure.what}: the apiserver asks to slow down"
        case status:
            return f"{failure.what}: the apiserver answered {status} {failure.reason}".rstrip()


def _quota(failure: ApiFailure) -> bool:
    return "exceeded quota" in failure.message or "failed quota" in failure.message


def _denied(failure: ApiFailure) -> bool:
    """Whether admission refused it (webhook, policy, LimitRange, PodSecurity), neither RBAC nor validation."""
    if failure.status == 403:
        return bool(failure.message) and not _UNAUTHORISED.search(failure.message)
    return 400 <= failure.status < 500 and "denied" in failure.message and not _fields(failure)


def _terminating(failure: ApiFailure) -> bool:
    return any(cause.get("reason") == "NamespaceTerminating" for cause in _causes(failure))


def _causes(failure: ApiFailure) -> list[Mapping[str, Any]]:
    causes = failure.details.get("causes")
    return [cause for cause in causes if isinstance(cause, Mapping)] if isinstance(causes, list) else []


def _fields(failure: ApiFailure) -> str:
    # Messages of causes quote the refused values; the fields' names do not.
    named = [
        f"{cause['field']} ({cause.get('reason') or 'refused'})" for cause in _causes(failure) if cause.get("field")
    ]
    if not named:
        return ""
    more = f" and {len(named) - _MOST_FIELDS} more" if len(named) > _MOST_FIELDS else ""
    claim = any(_CLAIM_SIZE in name for name in named)
    hint = ": a claim never shrinks, and grows only where its storage class allows it" if claim else ""
    return f": {', '.join(dict.fromkeys(named[:_MOST_FIELDS]))}{more}{hint}"
