"""What the end of a container or process costs, by the role of its pod."""

from __future__ import annotations

_ROLES = {
    "router": "requests that went through it failed",
    "store": "what it held is gone, and those prefixes are computed again",
}

EARLY = "the start took longer: it ended before it was ready, so that no request of it failed"


def cost(role: str) -> str:
    """What was lost with one that ended."""
    return _ROLES.get(role, "its requests failed, and what it had cached is computed again")
