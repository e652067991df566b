"""Virtual time: nothing waits, ``advance`` runs what is due."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Call:
    """A call in the future."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """A clock for the queue that stands still until it is told."""

    def __init__(self) -> None:
        self._now = 0.0
        self._calls: list[tuple[float, int, Call]] = []
        self._number = 0

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Call:
        call = Call(callback)
        self._number += 1
        heapq.heappush(self._calls, (when, self._number, call))
        return call

    def advance(self, seconds: float) -> None:
        until = self._now + seconds
        while self._calls and self._calls[0][0] <= until:
            self._now, _, call = heapq.heappop(self._calls)
            if call.callback is not None:
                call.callback()
        self._now = until
