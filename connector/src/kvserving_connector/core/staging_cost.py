"""What a transfer costs straight from the blocks and through a staging slot, measured, and which is chosen.

Pure: no clock, no randomness. A cost is linear in bytes and descriptors, with a fixed part. It begins with what was
measured once between two H100 GPUs and follows what decode engines report: the relative errors are kept small,
newer ones weigh more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MIB = 2**20

# Fixed seconds, seconds per MiB, seconds per 1,000 descriptors.
PRIOR_DIRECT = (1e-3, 5.1e-6, 5e-3)
PRIOR_STAGED = (1.5e-3, 6.5e-6, 0.0)
# How far off a prior may be, as a multiple of it.
_DOUBT = 4.0
# Variance of the relative error of one measurement.
_NOISE = 0.25**2
# What an older measurement weighs after each newer one.
_MEMORY = 0.99
# A measurement counts as at most this many times the estimate, and at least as its inverse.
CLIP = 16.0
_SHORTEST = 1e-5
# Decisions between two that take the other way to measure it, fewer at first, as a way whose first measurements met a
# slow moment would be ruled out for long; and what that may cost as a multiple of the better.
EXPLORE_EVERY = 64
EXPLORE_FIRST = 4
EXPLORE_AT_MOST = 8.0


class Way(StrEnum):
    """How a prompt's KV is transferred."""

    DIRECT = "direct"
    STAGED = "staged"


@dataclass(frozen=True)
class Sample:
    """One measured transfer, as a decode engine reports it."""

    way: Way
    bytes: int
    descriptors: int
    seconds: float


class Estimate:
    """Linear estimate of seconds that follows measurements, all coefficients at least 0."""

    def __init__(self, prior: Sequence[float]) -> None:
        self._theta = list(prior)
        self._limit = [(_DOUBT * value) ** 2 for value in prior]
        self._spread = [[self._limit[i] if i == j else 0.0 for j in range(3)] for i in range(3)]
        self.count = 0

    def seconds(self, size: int, descriptors: int) -> float:
        """Return the estimated seconds for so many bytes in so many descriptors."""
        return max(sum(a * b for a, b in zip(self._theta, _features(size, descriptors), strict=True)), _SHORTEST)

    def observe(self, size: int, descriptors: int, seconds: float) -> None:
        """Take one measurement. Raises ValueError for numbers that no transfer has."""
        if size < 1 or descriptors < 1 or not 0.0 <= seconds < float("inf"):
            raise ValueError(f"{size} bytes in {descriptors} descriptors and {seconds} s are no transfer")
        expected = self.seconds(size, descriptors)
        seen = min(max(seconds, expected / CLIP), expected * CLIP)
        scale = max(seen, _SHORTEST)
        row = [value / scale for value in _features(size, descriptors)]
        spread = [sum(self._spread[i][j] * row[j] for j in range(3)) for i in range(3)]
        weight = 1.0 / (_NOISE + sum(row[i] * spread[i] for i in range(3)))
        error = (seen - expected) / scale
        self._theta = [max(0.0, self._theta[i] + spread[i] * weight * error) for i in range(3)]
        for i in range(3):
            for j in range(3):
                self._spread[i][j] = (self._spread[i][j] - spread[i] * spread[j] * weight) / _MEMORY
        self._bound()
        self.count += 1

    def _bound(self) -> None:
        """Forgetting must not make an estimate that nothing is measured for more doubtful than it was at first."""
        for i in range(3):
            if self._spread[i][i] > self._limit[i]:
                factor = (self._limit[i] / self._spread[i][i]) ** 0.5
                for j in range(3):
                    self._spread[i][j] *= factor
                    self._spread[j][i] *= factor


@dataclass(frozen=True)
class Choice:
    """Which way, whether only to measure it, and the two estimates in seconds."""

    way: Way
    measuring: bool
    staged_seconds: float
    direct_seconds: float


@dataclass
class CostBook:
    """The two estimates of one prefill engine, over all decode engines that read from it."""

    estimates: dict[Way, Estimate] = field(
        default_factory=lambda: {Way.DIRECT: Estimate(PRIOR_DIRECT), Way.STAGED: Estimate(PRIOR_STAGED)}
    )
    _decisions: int = 0
    """Since the last that took the other way."""
    _explored: int = 0

    def observe(self, sample: Sample) -> None:
        """Take a measurement of a decode engine."""
        self.estimates[sample.way].observe(sample.bytes, sample.descriptors, sample.seconds)

    def choose(self, size: int, descriptors: int) -> Choice:
        """Choose for ``size`` bytes that are ``descriptors`` ranges; once in a while the other way, to measure it."""
        staged = self.estimates[Way.STAGED].seconds(size, 1)
        direct = self.estimates[Way.DIRECT].seconds(size, descriptors)
        better, other = (Way.STAGED, Way.DIRECT) if staged < direct else (Way.DIRECT, Way.STAGED)
        self._decisions += 1
        every = min(EXPLORE_EVERY, EXPLORE_FIRST * (1 + self._explored))
        due = self._decisions >= every and max(staged, direct) <= EXPLORE_AT_MOST * min(staged, direct)
        if due:
            self._decisions = 0
            self._explored += 1
        return Choice(other if due else better, due, staged, direct)


def _features(size: int, descriptors: int) -> tuple[float, float, float]:
    return 1.0, size / MIB, descriptors / 1000
