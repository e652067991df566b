"""The queue between events and reconciliation: keyed, deduplicating, delaying, retrying.

Each key is worked on by one worker at a time. Adding a key that waits changes nothing; adding
one that is being worked on makes it run once more afterwards. Time comes from a ``Clock``, so
that tests run without waiting.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")


class Timer(Protocol):
    """A call in the future that can be taken back."""

    def cancel(self) -> None:
        """Take the call back."""


class Clock(Protocol):
    """Time in seconds and calls in the future. An asyncio event loop is one."""

    def time(self) -> float:
        """Return the present time."""
        ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        """Call ``callback`` at ``when``."""
        ...


@dataclass(frozen=True)
class Backoff:
    """Delays of retries in seconds: ``first``, then doubled up to ``longest``, each shortened by up to ``jitter``."""

    first: float = 0.2
    longest: float = 300.0
    jitter: float = 0.3

    def delay(self, failures: int, draw: Callable[[], float]) -> float:
        """Return the delay after the given number of failures (1 is the first); ``draw`` gives 0 to 1."""
        full = min(self.longest, self.first * 2.0 ** min(failures - 1, 32))
        return full * (1 - self.jitter * draw())


class Closed(Exception):
    """The queue was closed; there is nothing more to do."""


class WorkQueue(Generic[K]):
    """Keys to work on. Not thread-safe: all calls come from one event loop."""

    def __init__(
        self, clock: Clock, *, backoff: Backoff = Backoff(), draw: Callable[[], float] = random.random
    ) -> None:
        self._clock = clock
        self._backoff = backoff
        self._draw = draw
        self._ready: deque[K] = deque()
        self._since: dict[K, float] = {}
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, tuple[float, Timer]] = {}
        self._failures: dict[K, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of keys that could be worked on now."""
        return len(self._ready)

    @property
    def working(self) -> int:
        """The number of keys that are being worked on."""
        return len(self._working)

    @property
    def oldest(self) -> float:
        """Seconds that the first key has been waiting for a worker; 0 when none waits."""
        return self._clock.time() - self._since[self._ready[0]] if self._ready else 0.0

    def add(self, key: K) -> None:
        """Make ``key`` run as soon as a worker is free. A delay that it waits for is over."""
        if self._closed:
            return
        self._cancel(key)
        if key in self._working:
            self._again.add(key)
        elif key not in self._since:
            self._since[key] = self._clock.time()
            self._ready.append(key)
            self._wake()

    def add_after(self, key: K, delay: float) -> None:
        """Make ``key`` run in ``delay`` seconds, unless it runs earlier anyway."""
        if self._closed or key in self._since or key in self._again:
            return
        when = self._clock.time() + max(0.0, delay)
        if key in self._timers:
            if self._timers[key][0] <= when:
                return
            self._cancel(key)
        self._timers[key] = (when, self._clock.call_at(when, lambda: self.add(key)))

    def retry(self, key: K, *, at_least: float = 0.0) -> float:
        """Make ``key`` run after its next delay, or ``at_least`` seconds; return the delay in seconds."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(at_least, self._backoff.delay(self._failures[key], self._draw))
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Let the delays of ``key`` start anew: it succeeded."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Return how often ``key`` failed in a row."""
        return self._failures.get(key, 0)

    def drop(self, key: K) -> None:
        """Forget everything about ``key`` that is not being worked on: its object is gone."""
        self._cancel(key)
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for a key and take it; ``done`` gives it back. Raises ``Closed`` when the queue is closed."""
        while not self._ready:
            if self._closed:
                raise Closed
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                elif self._ready:
                    self._wake()
                raise
        if self._closed:
            raise Closed
        key = self._ready.popleft()
        del self._since[key]
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Give a key back after work; it runs again if it was added meanwhile."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Let every ``get`` end with ``Closed`` and take back all delays. What is being worked on goes on."""
        self._closed = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        while self._waiters:
            self._wake()

    def _cancel(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer[1].cancel()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


class TokenBucket:
    """Bounds a rate: ``rate`` per second on average, ``burst`` at once. First come, first served."""

    def __init__(self, clock: Clock, rate: float, burst: int) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = clock.time()
        self._closed_until = self._at

    def hold(self, seconds: float) -> None:
        """Let no token be used for ``seconds``: the server asked to wait."""
        self._closed_until = max(self._closed_until, self._clock.time() + seconds)

    def reserve(self) -> float:
        """Take one token and return the seconds to wait before it may be used."""
        now = self._clock.time()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self._rate, self._closed_until - now)
