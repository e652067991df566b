"""When a store is not asked: for objects that it failed at a short while ago, and while it keeps people waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from kvserving_connector.store.client import Reason
from kvserving_connector.store.failed import FailedKeys, Pause
from kvserving_connector.store.transfers import Finished

FIRST_PAUSE = 1.0
"""Seconds in which the store is not asked after the first silence; each further one doubles them."""
LAST_PAUSE = 60.0
LATE_SECONDS = 5.0
"""Seconds for objects that could not be had for a reason of the store's, not theirs: it may be over in a moment."""
LONG_SECONDS = 0.5
"""A store that fails sooner holds nobody up."""


class Gate:
    """What look-ups and transfers say about a store, and what follows for the next look-up. For one thread.

    ``now`` and ``asked`` are instants of ``clock``.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        first_pause: float = FIRST_PAUSE,
        late_seconds: float = LATE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``timeout_s``: seconds that a load may take; the others: see the module's constants."""
        self._failed = FailedKeys(clock=clock)
        # Keys of which nothing is known but that the store did not serve: asked for again once it does.
        self._late = FailedKeys(late_seconds, clock=clock)
        self._long = min(LONG_SECONDS, timeout_s)
        # Apart, as a store may answer every look-up and deliver nothing.
        self._lookups = Pause(first_pause, LAST_PAUSE)
        self._loads = Pause(first_pause, LAST_PAUSE)

    @property
    def pauses(self) -> dict[str, Pause]:
        """The pauses by operation: ``lookup`` and ``load``."""
        return {"lookup": self._lookups, "load": self._loads}

    def paused(self, now: float) -> bool:
        """Return whether nothing is asked of the store now."""
        return now < self._lookups.until or now < self._loads.until

    def remembers(self, key: bytes) -> bool:
        """Return whether the store failed at the object a short while ago."""
        return key in self._failed or key in self._late

    def closed_for(self, key: bytes, now: float) -> Reason | None:
        """Return why the store is not asked for the object; None when it may be."""
        if self.paused(now):
            return Reason.PAUSED
        return Reason.REMEMBERED if self.remembers(key) else None

    def looked_up(self, asked: float, now: float, *, silent: bool) -> None:
        """Note that a look-up begun at ``asked`` was answered, or ended in the store's silence."""
        if silent:
            self._lookups.late(asked, now)
        else:
            self._lookups.answered()

    def given_up(self, keys: Iterable[bytes], asked: float, now: float) -> None:
        """Note that nobody waits any longer for the look-up of ``keys``, begun at ``asked``."""
        self._lookups.late(asked, now)
        self._late.add(keys)

    def ended(self, finished: Finished, now: float) -> None:
        """Note how a load or a store ended, ``now``."""
        if finished.load:
            self._load_ended(finished, now)
        else:
            self._failed.discard(set(finished.done).difference(finished.present))
        if finished.done and not finished.timed_out:
            self._late.clear()

    def _load_ended(self, finished: Finished, now: float) -> None:
        if finished.failed:
            self._failed.add(finished.wrong)
            self._late.add(set(finished.failed).difference(finished.wrong))
        if finished.silent and finished.seconds >= self._long:
            self._loads.late(now - finished.seconds, now)
        elif finished.done:
            self._loads.answered()
