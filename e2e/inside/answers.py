"""What an engine's answers say beyond their tokens."""

from __future__ import annotations

from typing import Any


def leads_of(logprobs: Any) -> tuple[float, ...]:
    """Return for each token how far its logprob is above the next best; nothing where none was asked for."""
    found = []
    for position in logprobs or ():
        first, second, *_ = sorted((entry.logprob for entry in position.values()), reverse=True)
        found.append(first - second)
    return tuple(found)
