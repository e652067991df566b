"""Counters of the tier: counted on any thread, taken by the scheduler. What keeps failing is told in the log once."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from kvserving_connector.store.client import Reason

logger = logging.getLogger("vllm.kvserving")

_QUIET_SECONDS = 600.0
"""A failure that did not happen for so long is over: the next one is told again."""
_UNTOLD = frozenset(
    {
        Reason.ABSENT,
        Reason.PRESENT,
        Reason.REMEMBERED,
        Reason.BUSY,
        Reason.PAUSED,
        Reason.CLOSED,
        # Counted as such, and each is followed by a pause.
        Reason.TIMEOUT,
    }
)


class Event(StrEnum):
    """What is counted. MISS and SKIP are counted by reason, TIMEOUT by operation, the others without a label."""

    HIT = "hit"
    """The store had an object that was looked up."""
    MISS = "miss"
    """An object could not be had, when it was looked up or when it was read."""
    READ = "read"
    READ_BYTES = "read_bytes"
    WRITTEN = "written"
    WRITTEN_BYTES = "written_bytes"
    SKIP = "skip"
    """An object was not written."""
    TIMEOUT = "timeout"
    """A look-up, load or store that was given up at its deadline."""


_TOLD = {
    Event.MISS: ("a chunk could not be read from", "misses"),
    Event.SKIP: ("a chunk could not be written to", "skipped_chunks"),
}


class Tally:
    """Counts by event and label. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[Event, str]] = Counter()
        self._clock = clock
        self._failed: dict[tuple[Event, str], float] = {}

    def count(self, event: Event, label: str = "", number: int = 1, detail: str = "") -> None:
        """Add ``number`` to an event's counter.

        A miss or skip that is a fault of the store is told in the log as well, with ``detail``: the first of its
        reason, and the first after ten minutes without one.
        """
        fault = event in _TOLD and label not in _UNTOLD
        with self._lock:
            # A plain string: the label crosses processes, whose decoder knows no enum.
            self._counts[event, str(label)] += number
            if fault:
                now = self._clock()
                last = self._failed.get((event, str(label)))
                self._failed[event, str(label)] = now
                fault = last is None or now - last >= _QUIET_SECONDS
        if fault:
            what, series = _TOLD[event]
            logger.warning(
                "KVServing: %s the store (spec.cache.l2): %s. Requests go on; further ones are counted by reason in "
                "store_%s_total of /metrics and not told here",
                what,
                f"{label}: {detail}" if detail else label,
                series,
            )

    def take(self) -> Counter[tuple[Event, str]]:
        """Return what was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts
