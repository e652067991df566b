"""What loading and computing cost, measured while serving, and which of them is chosen.

Pure: no clock, no randomness. ``Curve`` holds moving estimates of seconds over tokens. ``CostModel`` compares a load
and the rest of the prefill with the whole prefill, and answers with hysteresis, so that noise makes no oscillation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Weight of a new observation once an estimate has settled; before that every observation weighs the same.
ALPHA = 0.1
# An observation counts as at most this many times the estimate, and at least as its inverse: one stall is no trend.
CLIP = 4.0
# Observations that are needed on both sides before a load can be refused. Until then every hit is taken, to measure.
EVIDENCE = 4
# A tier that is loaded from is left when loading costs more than computing, and taken again below this share of it.
RETURN_BELOW = 0.8
# Opportunities between two changes of mind: doubled with every change.
FIRST_DWELL = 8
LAST_DWELL = 256
# Skipped opportunities between two loads that only measure: doubled by each, and back to the first by one that was
# faster than computing.
FIRST_PAUSE = 16
LAST_PAUSE = 256


@dataclass
class _Bucket:
    tokens: float = 0.0
    seconds: float = 0.0
    count: int = 0

    def observe(self, tokens: float, seconds: float) -> None:
        if self.count >= EVIDENCE:
            seconds = min(max(seconds, self.seconds / CLIP), self.seconds * CLIP)
        self.count += 1
        weight = max(1.0 / self.count, ALPHA)
        self.tokens += weight * (tokens - self.tokens)
        self.seconds += weight * (seconds - self.seconds)


class Curve:
    """Moving estimate of the seconds that a number of tokens takes, in buckets between powers of two.

    Fixed costs and growth faster than linear show as they are: nothing is assumed between the buckets but straight
    lines, through the origin below the smallest.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, _Bucket] = {}
        self._tokens = 0.0
        self._seconds = 0.0
        self.count = 0

    def observe(self, tokens: int, seconds: float) -> None:
        """Take one observation: ``tokens`` >= 1 took ``seconds`` >= 0. Raises ValueError for others."""
        if tokens < 1 or not 0.0 <= seconds < float("inf"):
            raise ValueError(f"{tokens} tokens in {seconds} s is no observation")
        self._buckets.setdefault(tokens.bit_length(), _Bucket()).observe(tokens, seconds)
        self.count += 1
        weight = max(1.0 / self.count, ALPHA)
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)

    @property
    def seconds_per_token(self) -> float:
        """Moving mean of the seconds over that of the tokens; 0 without observations."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def evidence(self, tokens: int, around: int = 0) -> int:
        """Return the observations in the bucket of ``tokens`` and in ``around`` buckets on either side."""
        middle = tokens.bit_length()
        return sum(bucket.count for index, bucket in self._buckets.items() if abs(index - middle) <= around)

    def estimate(self, tokens: int) -> float:
        """Return the estimated seconds for ``tokens`` >= 0; 0 without observations."""
        points = sorted((bucket.tokens, bucket.seconds) for bucket in self._buckets.values())
        if not points or tokens <= 0:
            return 0.0
        below = [(0.0, 0.0), *(point for point in points if point[0] <= tokens)]
        above = [point for point in points if point[0] > tokens]
        if above:
            (x0, y0), (x1, y1) = below[-1], above[0]
        else:
            (x0, y0), (x1, y1) = below[-2], below[-1]
        slope = max((y1 - y0) / (x1 - x0), 0.0)
        return y0 + slope * (tokens - x0)


@dataclass(frozen=True)
class Verdict:
    """Whether to load, and whether only to measure."""

    load: bool
    measuring: bool = False


@dataclass
class _Mind:
    """The choice for one tier and one size of hit."""

    computing: bool = False
    since: int = 0
    dwell: int = FIRST_DWELL
    skipped: int = 0
    pause: int = FIRST_PAUSE


@dataclass
class CostModel:
    """Estimates per tier and of prefill, and the choice between them.

    Guarantees, whatever the measurements: over n decisions for one tier and size, the choice changes at most
    ``log2(LAST_DWELL / FIRST_DWELL) + 1 + n / LAST_DWELL`` times, and at most one in ``FIRST_PAUSE`` refused loads is
    made all the same, to measure.
    """

    prefill: Curve = field(default_factory=Curve)
    loads: dict[str, Curve] = field(default_factory=dict)
    _minds: dict[tuple[str, int], _Mind] = field(default_factory=dict)
    _typical: dict[tuple[str, int], _Bucket] = field(default_factory=dict)

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """Take the time from the first step of a request to its first token, for ``tokens`` that were computed."""
        self.prefill.observe(tokens, seconds)

    def observe_load(self, tier: str, tokens: int, seconds: float, most: int | None = None) -> None:
        """Take the time that the request waited for ``tokens`` of ``tier``, of ``most`` that could have been a hit."""
        self.loads.setdefault(tier, Curve()).observe(tokens, seconds)
        if most is not None:
            self._typical.setdefault((tier, most.bit_length()), _Bucket()).observe(tokens, seconds)
        mind = self._minds.get((tier, (most or tokens).bit_length()))
        if mind is not None and seconds < RETURN_BELOW * self.prefill.estimate(tokens):
            mind.pause = FIRST_PAUSE

    def expected(self, tier: str, most: int) -> int:
        """Return the typical hit where at most ``most`` tokens can be one; ``most`` while too few were observed."""
        typical = self._typical.get((tier, most.bit_length()))
        if typical is None or typical.count < EVIDENCE:
            return most
        return min(most, max(1, round(typical.tokens)))

    def decide(self, tier: str, hit: int, new: int) -> Verdict:
        """Choose for a request with ``new`` tokens to compute, ``hit`` of which ``tier`` holds.

        Each call is one opportunity; ask once for one request. Raises ValueError unless 0 < ``hit`` <= ``new``.
        """
        if not 0 < hit <= new:
            raise ValueError(f"a hit of {hit} in {new} tokens cannot be")
        curve = self.loads.get(tier)
        return self._choose(tier, hit, new, size=hit, evidence=curve.evidence(hit) if curve else 0)

    def decide_unseen(self, tier: str, most: int, new: int) -> Verdict:
        """Choose like ``decide`` where the hit is not known, but for ``most``: it is judged by the expected one.

        The choice is one for each size of ``most``, so that a typical hit that moves makes no further changes.
        """
        if not 0 < most <= new:
            raise ValueError(f"a hit of {most} in {new} tokens cannot be")
        typical, curve = self._typical.get((tier, most.bit_length())), self.loads.get(tier)
        evidence = max(typical.count if typical else 0, curve.evidence(most) if curve else 0)
        return self._choose(tier, self.expected(tier, most), new, size=most, evidence=evidence)

    def _choose(self, tier: str, hit: int, new: int, *, size: int, evidence: int) -> Verdict:
        if evidence < EVIDENCE or self.prefill.evidence(new, around=1) < EVIDENCE:
            return Verdict(load=True)
        loading = self.loads[tier].estimate(hit) + self.prefill.estimate(new - hit)
        computing = self.prefill.estimate(new)
        mind = self._minds.setdefault((tier, size.bit_length()), _Mind())
        self._reconsider(mind, loading, computing)
        if not mind.computing:
            return Verdict(load=True)
        mind.skipped += 1
        if mind.skipped < mind.pause:
            return Verdict(load=False)
        mind.skipped = 0
        mind.pause = min(mind.pause * 2, LAST_PAUSE)
        return Verdict(load=True, measuring=True)

    @staticmethod
    def _reconsider(mind: _Mind, loading: float, computing: float) -> None:
        mind.since += 1
        wants = loading >= RETURN_BELOW * computing if mind.computing else loading > computing
        if wants == mind.computing or mind.since < mind.dwell:
            return
        mind.computing = wants
        mind.since = 0
        mind.dwell = min(mind.dwell * 2, LAST_DWELL)
        mind.skipped = 0
        mind.pause = FIRST_PAUSE
