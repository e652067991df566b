"""What a store failed at, remembered for a while: keys, so that a failed load is a miss instead of a loop, and silence.

For one thread each.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable


class FailedKeys:
    """A bounded, expiring set; the oldest key goes first."""

    def __init__(self, seconds: float = 60.0, limit: int = 65536, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._limit = limit
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def add(self, keys: Iterable[bytes]) -> None:
        """Remember the keys from now on, beyond the limit at the cost of the oldest."""
        until = self._clock() + self._seconds
        for key in keys:
            self._until.pop(key, None)
            self._until[key] = until
        while len(self._until) > self._limit:
            self._until.popitem(last=False)

    def discard(self, keys: Iterable[bytes]) -> None:
        """Forget the keys: they were written again."""
        for key in keys:
            self._until.pop(key, None)

    def clear(self) -> None:
        """Forget all keys."""
        self._until.clear()

    def __contains__(self, key: bytes) -> bool:
        until = self._until.get(key)
        if until is None:
            return False
        if until <= self._clock():
            del self._until[key]
            return False
        return True

    def __len__(self) -> int:
        return len(self._until)


class Pause:
    """The time in which a store that kept somebody waiting is not asked: ``first`` seconds, then twice as long.

    It grows once for an incident, up to ``last``: what was asked before a pause began and is late as well renews the
    pause at most, and what is late during it changes nothing. An answer starts over with ``first``.
    """

    def __init__(self, first: float, last: float) -> None:
        self._first = first
        self._last = last
        self._next = first
        self._length = first
        self._began = float("-inf")
        self.until = float("-inf")

    def late(self, asked: float, now: float) -> None:
        """Note that what was asked for at ``asked`` has no answer ``now``."""
        if now < self.until:
            return
        if asked >= self._began:
            self._length, self._next = self._next, min(2 * self._next, self._last)
        self._began = now
        self.until = now + self._length

    def answered(self) -> None:
        """Note an answer; a pause under way goes on."""
        self._next = self._length = self._first
