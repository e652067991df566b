"""Whether memory grows: private memory of processes over time, and entries that the connector's objects keep."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

_OURS = "kvserving_connector."
_CONTAINERS = (dict, list, set, frozenset, deque)


def growth(samples: Sequence[tuple[float, int]]) -> float:
    """Return the bytes that a process grew by from the first sample (seconds, bytes) to the last.

    By the median of the slopes of all pairs (Theil and Sen): some samples that stick out change nothing.
    """
    slopes = [(b - a) / (later - earlier) for (earlier, a), (later, b) in combinations(samples, 2) if later > earlier]
    return statistics.median(slopes) * (samples[-1][0] - samples[0][0])


def entries(half: Any, but: frozenset[str]) -> dict[str, int]:
    """Return the entries of each container that one of our objects reaches, by path; ``but`` names what is left out."""
    return dict(_entries(half, "", but, set()))


def _entries(owner: Any, path: str, but: frozenset[str], seen: set[int]) -> Iterator[tuple[str, int]]:
    if id(owner) in seen:
        return
    seen.add(id(owner))
    for name, value in _attributes(owner).items():
        if name in but:
            continue
        at = f"{path}.{name}"
        if isinstance(value, _CONTAINERS):
            yield at, len(value)
        elif type(value).__module__.startswith(_OURS):
            yield from _entries(value, at, but, seen)


def _attributes(owner: Any) -> Mapping[str, Any]:
    slots = [name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())]
    found = {name: getattr(owner, name) for name in slots if hasattr(owner, name)}
    return {**found, **getattr(owner, "__dict__", {})}
