"""Times as Kubernetes writes them: RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(at: datetime) -> str:
    """Return ``at`` to the second, as conditions and events have it. It must know its zone."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def exact_stamp(at: datetime) -> str:
    """Return ``at`` to the microsecond, as Leases have it. It must know its zone."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read(written: str) -> datetime:
    """Return the time in ``written``, in UTC where it names no zone. Raises ``ValueError`` for anything else."""
    found = datetime.fromisoformat(written)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
