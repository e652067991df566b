"""What the end of a container or process costs, by the role of its pod."""

from __future__ import annotations

_ROLES = {
    "router": "requests that went through it failed",
    "store": "what it held is gone, and those prefixes are computed again",
}


def cost(role: str) -> str:
    """What was lost with one that ended."""
    return _ROLES.get(role, "its requests failed, and what it had cached is computed again")


def times(number: int) -> str:
    """How often, in words."""
    return "once" if number == 1 else f"{number} times"
