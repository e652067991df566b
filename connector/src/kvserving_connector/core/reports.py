"""What the ranks of one engine tell its scheduler, and how reports of several ranks become one.

Every rank reports once per engine step, also when there is nothing to tell. Ranges are ``(start, count)`` in hash
blocks of the request. What ranks have saved counts when all of them have reported it; what one has lost is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvserving_connector.core.ranges import Range, intersection, union

Ranges = tuple[Range, ...]


@dataclass(frozen=True)
class SaveReport:
    """The end of one save: the ranges that the reporters hold now, and those of them that they had before.

    Merged: what all reporters hold, and what all of them had.
    """

    held: Ranges
    present: Ranges = ()
    reporters: int = 1

    def merge(self, other: SaveReport) -> SaveReport:
        """Return the report of both sides' reporters."""
        return SaveReport(
            intersection(self.held, other.held),
            intersection(self.present, other.present),
            self.reporters + other.reporters,
        )


@dataclass(frozen=True)
class ReadyReport:
    """The end of one probe: the tokens of the prompt, from its start, that can be loaded. Merged: fewest and most."""

    tokens: int
    most: int
    reporters: int = 1

    def merge(self, other: ReadyReport) -> ReadyReport:
        """Return the report of both sides' reporters."""
        return ReadyReport(min(self.tokens, other.tokens), max(self.most, other.most), self.reporters + other.reporters)


@dataclass
class WorkerReport:
    """One engine step of one rank, or of several after ``merge``.

    ``step`` is the number of the metadata that the rank has worked off. ``saves`` are by the number of the save,
    ``ready`` by that of the probe, ``failed`` (loads) by request. ``lost`` are parts that the rank evicts once the
    scheduler has dropped them, and parts that it found spoiled: it lost them after all else that it reports.
    ``capacity`` is the rank's tier in slots.
    """

    step: int
    capacity: int
    reporters: int = 1
    saves: dict[int, SaveReport] = field(default_factory=dict)
    failed: dict[str, Ranges] = field(default_factory=dict)
    ready: dict[int, ReadyReport] = field(default_factory=dict)
    lost: set[bytes] = field(default_factory=set)

    def merge(self, other: WorkerReport) -> WorkerReport:
        """Return one report for the reporters of both: saved by all, failed or lost by any, ready at the least."""
        merged = WorkerReport(
            min(self.step, other.step),
            min(self.capacity, other.capacity),
            self.reporters + other.reporters,
            _merged(self.saves, other.saves),
            dict(self.failed),
            _merged(self.ready, other.ready),
            self.lost | other.lost,
        )
        for request_id, ranges in other.failed.items():
            merged.failed[request_id] = union(merged.failed.get(request_id, ()), ranges)
        return merged


_R = TypeVar("_R", SaveReport, ReadyReport)


def _merged(one: dict[int, _R], other: dict[int, _R]) -> dict[int, _R]:
    merged = dict(one)
    for key, report in other.items():
        known = merged.get(key)
        merged[key] = report if known is None else known.merge(report)
    return merged


class Quorum(Generic[_R]):
    """Collects reports about the same thing until all ranks have made theirs, however many steps apart.

    A rank that never reports counts as one that has nothing: the quorum is not reached. vLLM's aggregation leaves out
    ranks that report nothing, so counting what arrives is the only way to know.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._open: dict[int, _R] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, number: int) -> bool:
        """Whether some ranks have reported and others have not."""
        return number in self._open

    def add(self, number: int, report: _R) -> _R | None:
        """Take a report; return the merged one when it was the last, else None."""
        known = self._open.pop(number, None)
        merged = report if known is None else known.merge(report)
        if merged.reporters >= self._ranks:
            return merged
        self._open[number] = merged
        return None

    def drop(self, number: int) -> None:
        """Forget what was collected about ``number``."""
        self._open.pop(number, None)
