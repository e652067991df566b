"""Times to the first token without an engine: in which order prompts are asked, and what the times say of goal G3."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RUNS = 3
REPEATS = 5
"""Rounds of a run. Its median is one figure, and the figures of the runs show how far they are to be believed."""
LIMIT = 1.1
"""Goal G3: of a hit in the engine's own cache and the bytes over the link."""

Round = Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One prompt of the plan; none of another turn begins like it."""

    run: int
    repeat: int
    length: int

    @property
    def name(self) -> str:
        """Name of its prompt."""
        return f"run {self.run} repeat {self.repeat} of {self.length}"


def plan(lengths: Sequence[int], runs: int = RUNS, repeats: int = REPEATS) -> list[Turn]:
    """Return all turns: lengths take turns, there and back, so that a drift of the machine hits all of them alike."""
    return [
        Turn(run, repeat, length)
        for run in range(runs)
        for repeat in range(repeats)
        for length in (lengths if repeat % 2 == 0 else reversed(lengths))
    ]


@dataclass(frozen=True)
class Spread:
    """Seconds: the median of the runs' medians, the least and the most of them; of one run alone, of its rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, rounds: Sequence[Round], state: str) -> Spread:
        """Return that of a state. Raises StatisticsError without rounds."""
        by_run: dict[int, list[float]] = {}
        for one in rounds:
            by_run.setdefault(one["run"], []).append(one[state])
        medians = [statistics.median(of) for of in by_run.values()]
        spread = medians if len(by_run) != 1 else [one[state] for one in rounds]
        return cls(statistics.median(medians), min(spread), max(spread))

    @property
    def noise(self) -> float:
        """How far the runs are apart."""
        return self.most - self.least


def against_cold(rounds: Sequence[Round], state: str) -> str:
    """Return where a tier's first token is: ``below`` computing, ``within noise`` of it, or ``above``.

    The noise is how far the runs that computed the same lengths are apart. ``above`` is what goal G3 forbids.
    """
    cold, found = Spread.of(rounds, "cold"), Spread.of(rounds, state)
    if found.median <= cold.median:
        return "below"
    return "within noise" if found.median <= cold.median + cold.noise else "above"


def bound(rounds: Sequence[Round], kv_token: int, bytes_per_second: float) -> float | None:
    """Return the seconds that goal G3 allows a load from L1; None where nothing was loaded.

    ``bytes_per_second`` is the link's.
    """
    loaded: float = statistics.median(one["loaded"] for one in rounds)
    if not loaded:
        return None
    return LIMIT * (Spread.of(rounds, "own").median + loaded * kv_token / bytes_per_second)


def verdicts(found: Mapping[str, Sequence[Round]], state: str) -> dict[str, str]:
    """Return ``against_cold`` by length."""
    return {length: against_cold(rounds, state) for length, rounds in found.items() if rounds}
