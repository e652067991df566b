"""Metric series that more than one connector has: names, texts, and the label values that start at 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import REGISTRY

from kvserving_connector.core.cost import CostModel
from kvserving_connector.core.loads import LoadTally, Tier
from kvserving_connector.store.client import Reason
from kvserving_connector.store.tally import Event

PREFIX = "kvserving:"
TIERS = tuple(str(tier) for tier in Tier)
_REASONS = tuple(str(reason) for reason in Reason)


@dataclass(frozen=True)
class Series:
    """A counter, or a gauge, with one label at most."""

    name: str
    text: str
    label: str | None = None
    values: tuple[str, ...] = ()
    """Every value that the label can have."""
    gauge: bool = False

    @property
    def labelnames(self) -> tuple[str, ...]:
        """The label as a tuple, empty without one."""
        return () if self.label is None else (self.label,)

    @property
    def labelvalues(self) -> tuple[tuple[str, ...], ...]:
        """Every combination of label values; one, which is empty, without a label."""
        return ((),) if self.label is None else tuple((value,) for value in self.values)


def _by_tier(name: str, text: str, *, gauge: bool = False) -> Series:
    return Series(PREFIX + name, text, "tier", TIERS, gauge)


def _of_store(name: str, text: str, label: str | None = None, values: tuple[str, ...] = ()) -> Series:
    return Series(f"{PREFIX}store_{name}", text, label, values)


STORE = {
    Event.HIT: _of_store("hits", "Chunks that the store had when they were looked up."),
    Event.MISS: _of_store(
        "misses", "Chunks that could not be had from the store, when looked up or when read.", "reason", _REASONS
    ),
    Event.READ: _of_store("read_chunks", "Chunks read from the store, verified and copied to host memory."),
    Event.READ_BYTES: _of_store("read_bytes", "Bytes of the chunks read."),
    Event.WRITTEN: _of_store("written_chunks", "Chunks written to the store."),
    Event.WRITTEN_BYTES: _of_store("written_bytes", "Bytes of the chunks written."),
    Event.SKIP: _of_store("skipped_chunks", "Chunks that were not written to the store.", "reason", _REASONS),
    Event.TIMEOUT: _of_store(
        "timeouts", "Look-ups and jobs given up at their deadline.", "operation", ("lookup", "load", "store")
    ),
}
STORE_PENDING = Series(
    f"{PREFIX}store_pending_chunks", "Chunks being loaded or stored.", "operation", ("load", "store"), gauge=True
)

LOADS = _by_tier("tier_loads", "Requests whose KV was loaded from the tier.")
TOKENS = _by_tier("tier_load_tokens", "Tokens whose KV was loaded from the tier.")
SECONDS = _by_tier("tier_load_seconds", "Seconds that requests waited for KV of the tier.")
MEASURING = _by_tier(
    "tier_loads_to_measure",
    "Loads that were judged slower than computing and allowed all the same, to measure the tier.",
)
SKIPPED = _by_tier(
    "tier_loads_skipped",
    "Requests that the tier was not loaded for, as computing was judged faster or it had not answered lately.",
)
SKIPPED_TOKENS = _by_tier(
    "tier_tokens_skipped",
    "Tokens of the requests that the tier was not loaded for; of l2 those that it was not asked for.",
)
TIMEOUTS = Series(f"{PREFIX}tier_timeouts", "Requests that were computed because no tier answered in time.")
LOAD_COST = _by_tier(
    "tier_load_seconds_per_token",
    "Moving estimate of the seconds that a token takes to load from the tier.",
    gauge=True,
)
PREFILL_COST = Series(
    f"{PREFIX}prefill_seconds_per_token",
    "Moving estimate of the seconds that a token takes to compute.",
    gauge=True,
)
OF_LOADS = (LOADS, TOKENS, SECONDS, MEASURING, SKIPPED, SKIPPED_TOKENS, TIMEOUTS, LOAD_COST, PREFILL_COST)
OF_STORES = (*STORE.values(), STORE_PENDING)

Sample = tuple[Series, float, tuple[str, ...]]
"""A number of a series, for its label's value."""


def load_samples(tally: LoadTally, model: CostModel) -> Iterator[Sample]:
    """Yield what the tally counted and the model's estimates as they are now."""
    for series, counts in (
        (LOADS, tally.loads),
        (TOKENS, tally.tokens),
        (SECONDS, tally.seconds),
        (MEASURING, tally.measuring),
        (SKIPPED, tally.skipped),
        (SKIPPED_TOKENS, tally.skipped_tokens),
    ):
        for tier, value in counts.items():
            yield series, value, (str(tier),)
    if tally.timeouts:
        yield TIMEOUTS, tally.timeouts, ()
    for label, curve in model.loads.items():
        yield LOAD_COST, curve.seconds_per_token, (str(label),)
    yield PREFILL_COST, model.prefill.seconds_per_token, ()


def unregister(several: Iterable[Series]) -> None:
    """Forget the metrics of an earlier engine in this process, as vLLM does with its own."""
    names = {series.name for series in several}
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", None) in names:
            REGISTRY.unregister(collector)
