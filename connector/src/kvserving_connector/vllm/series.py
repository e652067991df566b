"""Metric series of the connectors: names, texts, and the label values that start at 0. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import REGISTRY

from kvserving_connector.core.cost import CostModel
from kvserving_connector.core.loads import LoadTally, Tier
from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.selection import PENDING
from kvserving_connector.core.staging_desk import Direct
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

STAGED_LOADS, STAGED_WAITS = "kvserving_staged_loads", "kvserving_staged_waits"
"""Keys of lists that workers fill."""


def _handoff(name: str, text: str) -> Series:
    return Series(PREFIX + name, text)


SUMMED = {
    "kvserving_signed": _handoff("handoffs_signed", "Handoffs that this prefill engine signed."),
    "kvserving_receipts": _handoff("receipts", "Receipts given to probes."),
    "kvserving_tokens": _handoff("transfer_tokens", "Prompt tokens whose KV came from a prefill engine."),
    "kvserving_bytes": _handoff("transfer_bytes", "Bytes of KV received for finished requests, all ranks."),
    "kvserving_seconds": _handoff("transfer_seconds", "Seconds that transfers took, slowest rank of each."),
    "kvserving_failed": _handoff("transfer_failures", "Requests whose KV could not be loaded."),
    "kvserving_staged": _handoff("staging_bytes", "Bytes of one rank gathered into staging slots."),
    "kvserving_staging_saved": _handoff(
        "staging_descriptors_saved", "Descriptors of one rank that staged prompts would have taken from their blocks."
    ),
    "kvserving_staging_released": _handoff("staging_slots_released", "Staging slots given back."),
    STAGED_LOADS: _handoff("staged_load_bytes", "Bytes read from staging slots, all ranks."),
    STAGED_WAITS: _handoff(
        "staged_load_wait_seconds", "Seconds that staged loads waited for room in this engine's pool, all ranks."
    ),
}
"""By key of the statistics: lists of which the entries are added."""
COUNTED = {
    "kvserving_tokens": _handoff("transfers", "Requests served with KV from a prefill engine."),
    "kvserving_staged": _handoff("staging_slots", "Prompts gathered into staging slots."),
    STAGED_LOADS: _handoff("staged_loads", "Prompts read from staging slots, once for each rank."),
}
"""The same for lists of which the entries are counted: one for each prompt."""
BY_REASON = {
    "kvserving_refused": Series(
        f"{PREFIX}handoffs_refused",
        "Transfer parameters that the scheduler refused although they passed the API server.",
        "reason",
        tuple(str(reason) for reason in Refusal),
    ),
    "kvserving_staging_direct": Series(
        f"{PREFIX}staging_direct",
        "Prompts left in their blocks by an engine that has a staging pool.",
        "reason",
        tuple(str(reason) for reason in Direct),
    ),
}
"""The same for lists of reasons."""
OF_HANDOFFS = (*SUMMED.values(), *COUNTED.values(), *BY_REASON.values())

_WORKER = f"{PREFIX}worker_cache_"
PROMISED = f"{_WORKER}promised_tokens"
LOADED = f"{_WORKER}loaded_tokens"
FAILED = f"{_WORKER}failed_tokens"
SAVED = f"{_WORKER}saved_tokens"
LOST = f"{_WORKER}lost_tokens"
TRACKED = f"{_WORKER}tracked_parts"
CAPACITY = f"{_WORKER}capacity_bytes"
USED = f"{_WORKER}used_bytes"
OF_WORKERS = (
    Series(PROMISED, "Tokens that requests were promised from the tier.", "tier", TIERS),
    Series(LOADED, "Promised tokens that every rank loaded.", "tier", TIERS),
    Series(FAILED, "Promised tokens that a rank could not load: the request fails, or computes them.", "tier", TIERS),
    Series(SAVED, "Tokens that every rank copied to its host memory."),
    Series(LOST, "Tokens that are no longer on every rank: evicted, or dropped as wrong."),
    Series(TRACKED, "Parts that the scheduler knows every rank to hold.", gauge=True),
    Series(CAPACITY, "Host memory of the worker caches, all ranks.", gauge=True),
    Series(USED, "Host memory of the worker caches that holds KV, all ranks.", gauge=True),
)

# Under vLLM's prefix, and by names of the children, which are known only when an engine starts.
CHOICES = {
    name: Series(f"vllm:kv_connector_mc_{name}", text, "connector", gauge=name == PENDING)
    for name, text in (
        ("queries", "Requests that the child connector was asked about and that were given blocks."),
        ("hits", "Requests that the child connector was chosen to load."),
        ("hit_tokens", "Tokens of the requests that the child connector was chosen to load."),
        ("misses", "Requests for which the child connector had no tokens, or no answer in time."),
        (PENDING, "Asynchronous loads of the child connector that are under way."),
    )
}
"""Choices between connectors, by what ``core.selection`` calls them."""

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
