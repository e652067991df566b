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
# From blocks in memory that is mapped as kvcached maps it, which UCX copies piece by piece: between two H200 GPUs.
PRIOR_MAPPED = (1e-3, 2.2e-3, 5e-3)
# How far off a prior may be, and a measurement before it is doubted, as a multiple of it.
_DOUBT = 4.0
# Variance of the relative error of one measurement.
_NOISE = 0.25**2
# What an older measurement weighs after each newer one.
_MEMORY = 0.99
# A measurement counts as at most this many times the estimate, and at least as its inverse.
CLIP = 16.0
_SHORTEST = 1e-5
# Decisions between two that take the other way to measure it, times what it costs as a multiple of the better: in the
# long run all of them take less than a 64th of the time. Fewer at first, as a way whose first measurements met a slow
# moment would be ruled out for long. And the multiple from which a way that is known is not measured any more.
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

    def __init__(self, prior: Sequence[float], *, doubted: bool = False) -> None:
        """With ``doubted`` the prior's rate is to be measured some time, however slow it is."""
        self._theta = list(prior)
        self._limit = [(_DOUBT * value) ** 2 for value in prior]
        self._spread = [[self._limit[i] if i == j else 0.0 for j in range(3)] for i in range(3)]
        self.count = 0
        self.doubted_rate = prior[1] / MIB if doubted else 0.0
        """Seconds a byte of the last measurement, where it was far above the estimate: a stall, or the truth. Until
        that is known a prompt of gigabytes does not find it out, if any smaller one does."""

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
        self.doubted_rate = seconds / size if seconds > _DOUBT * expected else 0.0
        row = [value / scale for value in _features(size, descriptors)]
        spread = [sum(self._spread[i][j] * row[j] for j in range(3)) for i in range(3)]
        doubt = sum(row[i] * spread[i] for i in range(3))
        weight = 1.0 / (_NOISE + doubt)
        error = (seen - expected) / scale
        self._theta = [max(0.0, self._theta[i] + spread[i] * weight * error) for i in range(3)]
        # Where a coefficient met 0 the others may have gone the wrong way; what this transfer is to take is known.
        wanted, found = expected + doubt * weight * (seen - expected), self.seconds(size, descriptors)
        if found > _SHORTEST:
            self._theta = [value * wanted / found for value in self._theta]
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
    """Which way, and whether only to measure it."""

    way: Way
    measuring: bool


@dataclass
class CostBook:
    """The two estimates of one prefill engine, over all decode engines that read from it."""

    estimates: dict[Way, Estimate] = field(
        default_factory=lambda: {Way.DIRECT: Estimate(PRIOR_DIRECT), Way.STAGED: Estimate(PRIOR_STAGED)}
    )
    _decisions: int = 0
    """Since the last that took the other way."""
    _explored: int = 0

    @classmethod
    def of_mapped_memory(cls) -> CostBook:
        """Return the book of an engine whose blocks are memory that is mapped while they are used."""
        return cls({Way.DIRECT: Estimate(PRIOR_MAPPED, doubted=True), Way.STAGED: Estimate(PRIOR_STAGED)})

    def observe(self, sample: Sample) -> None:
        """Take a measurement of a decode engine."""
        self.estimates[sample.way].observe(sample.bytes, sample.descriptors, sample.seconds)

    def choose(self, size: int, descriptors: int) -> Choice:
        """Choose for ``size`` bytes that are ``descriptors`` ranges; once in a while the other way, to measure it."""
        staged = self.estimates[Way.STAGED].seconds(size, 1)
        direct = self.estimates[Way.DIRECT].seconds(size, descriptors)
        better, other = (Way.STAGED, Way.DIRECT) if staged < direct else (Way.DIRECT, Way.STAGED)
        self._decisions += 1
        least, feared = min(staged, direct), self.estimates[other].doubted_rate * size
        ratio = max(staged, direct, feared) / least
        every = ratio * min(EXPLORE_EVERY, EXPLORE_FIRST * (1 + self._explored))
        due = self._decisions >= every and (ratio <= EXPLORE_AT_MOST or feared > 0)
        if due:
            self._decisions = 0
            self._explored += 1
        return Choice(other if due else better, due)


def _features(size: int, descriptors: int) -> tuple[float, float, float]:
    return 1.0, size / MIB, descriptors / 1000
