"""Keys whose read failed, for a while: what makes a failed load a miss instead of a loop."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable


class FailedKeys:
    """A bounded, expiring set; the oldest key goes first. For one thread."""

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
