"""Counters of the tier: counted on any thread, taken by the scheduler."""

from __future__ import annotations

import threading
from collections import Counter
from enum import StrEnum


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


class Tally:
    """Counts by event and label. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[Event, str]] = Counter()

    def count(self, event: Event, label: str = "", number: int = 1) -> None:
        """Add ``number`` to an event's counter."""
        with self._lock:
            # A plain string: the label crosses processes, whose decoder knows no enum.
            self._counts[event, str(label)] += number

    def take(self) -> Counter[tuple[Event, str]]:
        """Return what was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return counts
