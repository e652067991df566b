"""Counters of loads from the tiers, beside vLLM's own offloading series and on the same path.

The scheduler's ledger counts, vLLM's self-describing payload carries the numbers to the API server, and the Prometheus
class counts ours there before vLLM's sees the rest.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats, OffloadPromMetrics

from kvserving_connector.core.cost import CostModel
from kvserving_connector.core.loads import LoadTally, Tier

_PREFIX = "kvserving:"
_OF_STORES = f"{_PREFIX}store_"
LOADS = f"{_PREFIX}tier_loads"
TOKENS = f"{_PREFIX}tier_load_tokens"
SECONDS = f"{_PREFIX}tier_load_seconds"
MEASURING = f"{_PREFIX}tier_loads_to_measure"
SKIPPED = f"{_PREFIX}tier_loads_skipped"
SKIPPED_TOKENS = f"{_PREFIX}tier_tokens_skipped"
TIMEOUTS = f"{_PREFIX}tier_timeouts"
LOAD_COST = f"{_PREFIX}tier_load_seconds_per_token"
PREFILL_COST = f"{_PREFIX}prefill_seconds_per_token"

_BY_TIER = {
    LOADS: "Requests whose KV was loaded from the tier.",
    TOKENS: "Tokens whose KV was loaded from the tier.",
    SECONDS: "Seconds that requests waited for KV of the tier.",
    MEASURING: "Loads that were judged slower than computing and allowed all the same, to measure the tier.",
    SKIPPED: "Requests that the tier was not loaded for, as computing was judged faster or it had not answered lately.",
    SKIPPED_TOKENS: "Tokens of the requests that the tier was not loaded for; of l2 those that it was not asked for.",
}
_PLAIN = {TIMEOUTS: "Requests that were computed because no tier answered in time."}
_GAUGES = {
    LOAD_COST: "Moving estimate of the seconds that a token takes to load from the tier.",
    PREFILL_COST: "Moving estimate of the seconds that a token takes to compute.",
}


def load_stats(tally: LoadTally, model: CostModel) -> Any:
    """Return the tally, and the model's estimates as they are now, as vLLM's statistics."""
    stats = OffloadingConnectorStats()
    for name, counts in (
        (LOADS, tally.loads),
        (TOKENS, tally.tokens),
        (SECONDS, tally.seconds),
        (MEASURING, tally.measuring),
        (SKIPPED, tally.skipped),
        (SKIPPED_TOKENS, tally.skipped_tokens),
    ):
        for tier, value in counts.items():
            stats.increase_counter(name, value, (str(tier),))
    if tally.timeouts:
        stats.increase_counter(TIMEOUTS, tally.timeouts)
    for label, curve in model.loads.items():
        stats.set_gauge(LOAD_COST, curve.seconds_per_token, (str(label),))
    stats.set_gauge(PREFILL_COST, model.prefill.seconds_per_token)
    return stats


class LoadPromMetrics(OffloadPromMetrics):  # type: ignore[misc]
    """vLLM's offloading metrics and ours; the label ``tier`` is one of ``Tier``, and every series starts at 0."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        _unregister_ours()
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._ours: dict[tuple[int, str, tuple[str, ...]], Any] = {}
        labelled = {**dict.fromkeys(_BY_TIER, True), LOAD_COST: True}
        for name, documentation in {**_BY_TIER, **_PLAIN, **_GAUGES}.items():
            kind = self._gauge_cls if name in _GAUGES else self._counter_cls
            by_tier = labelled.get(name, False)
            metric = kind(
                name=name, documentation=documentation, labelnames=[*labelnames, "tier"] if by_tier else labelnames
            )
            for engine, values in per_engine_labelvalues.items():
                for labels in [(str(tier),) for tier in Tier] if by_tier else [()]:
                    self._ours[engine, name, labels] = metric.labels(*values, *labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count one payload of statistics."""
        values: dict[str, dict[tuple[str, ...], float]] = transfer_stats_data.get("data", {})
        ours = values.keys() & {*_BY_TIER, *_PLAIN, *_GAUGES}
        for name in ours:
            for labels, value in values[name].items():
                metric = self._ours[engine_idx, name, tuple(labels)]
                (metric.set if name in _GAUGES else metric.inc)(value)
        # By name, not by prefix: the store tier's counters begin alike and are vLLM's to count.
        theirs = {name: value for name, value in values.items() if name not in ours}
        super().observe({**transfer_stats_data, "data": theirs}, engine_idx)


def _unregister_ours() -> None:
    """Forget metrics of an earlier engine in this process, as vLLM does with its own."""
    ours = {*_BY_TIER, *_PLAIN, *_GAUGES}
    for collector in list(REGISTRY._collector_to_names):
        name = getattr(collector, "_name", "")
        if name in ours or name.startswith(_OF_STORES):
            REGISTRY.unregister(collector)
