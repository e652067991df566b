"""What the scheduler knows of the tier that its workers own: bounded, least recently used first.

The workers decide; the tracker follows their reports (``core.reports``). Nothing is promised that they did not report,
and what they report lost is forgotten at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class PrefixTracker:
    """The parts that every rank holds, each with the number of slots that it takes.

    ``capacity`` is that of the smallest rank, in slots; the tracker never holds more. ``exclusive`` is the gate: a tier
    that other engines write to or evict from must not be tracked, as it may lose at any time what was reported. Such a
    tracker holds nothing, whatever it is told.

    ``holds`` has no side effects: the scheduler asks for a request as often as it likes.
    """

    def __init__(self, capacity: int = 0, *, exclusive: bool = True) -> None:
        self._exclusive = exclusive
        self._capacity = capacity
        self._parts: OrderedDict[bytes, int] = OrderedDict()
        self._used = 0

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def capacity(self) -> int:
        """Slots of the smallest rank."""
        return self._capacity

    @property
    def used(self) -> int:
        """Slots that the tracked parts take."""
        return self._used

    def holds(self, key: bytes) -> bool:
        """Whether every rank has reported the part, and none that it is lost."""
        return key in self._parts

    def keys(self) -> frozenset[bytes]:
        """Return what is tracked."""
        return frozenset(self._parts)

    def add(self, key: bytes, slots: int) -> None:
        """Note a part that every rank holds, as the most recently used one. Raises ValueError unless ``slots`` >= 1."""
        if slots < 1:
            raise ValueError(f"a part of {slots} slots cannot be")
        if not self._exclusive:
            return
        self._used += slots - self._parts.pop(key, 0)
        self._parts[key] = slots
        self._trim()

    def drop(self, keys: Iterable[bytes]) -> int:
        """Forget parts that a rank has lost; return how many of them were tracked."""
        dropped = 0
        for key in keys:
            slots = self._parts.pop(key, None)
            if slots is not None:
                self._used -= slots
                dropped += 1
        return dropped

    def touch(self, keys: Iterable[bytes]) -> None:
        """Make parts the most recently used ones, in this order; unknown ones are left out."""
        for key in keys:
            if key in self._parts:
                self._parts.move_to_end(key)

    def resize(self, capacity: int) -> None:
        """Take the capacity that the smallest rank reports; what does not fit is forgotten."""
        self._capacity = capacity
        self._trim()

    def clear(self) -> None:
        """Forget everything."""
        self._parts.clear()
        self._used = 0

    def _trim(self) -> None:
        while self._used > self._capacity:
            self._used -= self._parts.popitem(last=False)[1]
