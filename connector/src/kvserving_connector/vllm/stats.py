"""Connector statistics: vLLM's NIXL series unchanged, and ours beside them on the same path.

The scheduler's desk counts, vLLM carries the lists to the API server, and the Prometheus class counts them there.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY

from kvserving_connector.compat import nixl_stats_module
from kvserving_connector.core.desk import Tally
from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.staging_desk import Direct, LoadTally, StagingTally

_nixl: Any = nixl_stats_module()

_KEYS = {
    "kvserving_refused": "refused",
    "kvserving_signed": "signed",
    "kvserving_receipts": "receipts",
    "kvserving_tokens": "tokens",
    "kvserving_bytes": "bytes",
    "kvserving_seconds": "seconds",
    "kvserving_failed": "failed",
}
_STAGING_KEYS = {
    "kvserving_staged": "staged",
    "kvserving_staging_saved": "saved",
    "kvserving_staging_released": "released",
    "kvserving_staging_direct": "direct",
}
_STAGED_LOADS, _STAGED_WAITS = "kvserving_staged_loads", "kvserving_staged_waits"
_ALL_KEYS = (*_KEYS, *_STAGING_KEYS, _STAGED_LOADS, _STAGED_WAITS)

# Statistics key, metric, help.
_COUNTERS = (
    ("kvserving_signed", "kvserving:handoffs_signed_total", "Handoffs that this prefill engine signed."),
    ("kvserving_receipts", "kvserving:receipts_total", "Receipts given to probes."),
    ("kvserving_tokens", "kvserving:transfer_tokens_total", "Prompt tokens whose KV came from a prefill engine."),
    ("kvserving_bytes", "kvserving:transfer_bytes_total", "Bytes of KV received for finished requests, all ranks."),
    ("kvserving_seconds", "kvserving:transfer_seconds_total", "Seconds that transfers took, slowest rank of each."),
    ("kvserving_failed", "kvserving:transfer_failures_total", "Requests whose KV could not be loaded."),
    ("kvserving_staged", "kvserving:staging_bytes_total", "Bytes of one rank gathered into staging slots."),
    (
        "kvserving_staging_saved",
        "kvserving:staging_descriptors_saved_total",
        "Descriptors of one rank that staged prompts would have taken from their blocks.",
    ),
    ("kvserving_staging_released", "kvserving:staging_slots_released_total", "Staging slots given back."),
    (_STAGED_LOADS, "kvserving:staged_load_bytes_total", "Bytes read from staging slots, all ranks."),
    (
        _STAGED_WAITS,
        "kvserving:staged_load_wait_seconds_total",
        "Seconds that staged loads waited for room in this engine's pool, all ranks.",
    ),
)
# The same for lists of which the entries are counted: one for each prompt.
_COUNTED = (
    ("kvserving_staged", "kvserving:staging_slots_total", "Prompts gathered into staging slots."),
    (_STAGED_LOADS, "kvserving:staged_loads_total", "Prompts read from staging slots, once for each rank."),
)
_TRANSFERS = ("kvserving_tokens", "kvserving:transfers_total", "Requests served with KV from a prefill engine.")
_REFUSED = (
    "kvserving_refused",
    "kvserving:handoffs_refused_total",
    "Transfer parameters that the scheduler refused although they passed the API server.",
)


_DIRECT = (
    "kvserving_staging_direct",
    "kvserving:staging_direct_total",
    "Prompts left in their blocks by an engine that has a staging pool.",
)


class HandoffStats(_nixl.NixlKVConnectorStats):  # type: ignore[misc]
    """vLLM's NIXL statistics with our lists; a payload without them is read as empty lists."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in _ALL_KEYS:
            self.data.setdefault(key, [])

    def reset(self) -> None:
        """Clear all lists."""
        super().reset()
        for key in _ALL_KEYS:
            self.data[key] = []

    def aggregate(self, other: Any) -> HandoffStats:
        """Join another statistics object's lists to these, whichever lists either of them has."""
        for key, items in other.data.items():
            self.data.setdefault(key, []).extend(items)
        return self

    def is_empty(self) -> bool:
        """Whether no list has an entry."""
        return not any(self.data.values())

    def reduce(self) -> dict[str, int | float]:
        """Return vLLM's summary for its log line, with our totals."""
        summary: dict[str, int | float] = super().reduce()
        summary["Handoffs signed"] = len(self.data["kvserving_signed"])
        summary["Handoffs refused"] = len(self.data["kvserving_refused"])
        summary["Transferred tokens"] = sum(self.data["kvserving_tokens"])
        return summary


def from_tally(tally: Tally) -> HandoffStats:
    """Return statistics with the desk's lists."""
    stats = HandoffStats()
    for key, name in _KEYS.items():
        stats.data[key] = list(getattr(tally, name))
    return stats


def add_staging(stats: HandoffStats | None, tally: StagingTally | None) -> HandoffStats | None:
    """Return the statistics with the staging desk's lists; None when there is neither."""
    if tally is None:
        return stats
    found = stats or HandoffStats()
    for key, name in _STAGING_KEYS.items():
        found.data[key] = list(getattr(tally, name))
    return found


def from_worker(stats: Any) -> HandoffStats:
    """Return vLLM's worker statistics in our class, so that both can be merged."""
    return HandoffStats(data=dict(stats.data))


def add_loads(stats: HandoffStats | None, loads: LoadTally | None) -> HandoffStats | None:
    """Return the statistics with a rank's staged loads; None when there is neither."""
    if loads is None or not loads.bytes:
        return stats
    found = stats or HandoffStats()
    found.data[_STAGED_LOADS], found.data[_STAGED_WAITS] = loads.bytes, loads.waited
    return found


class HandoffPromMetrics(_nixl.NixlPromMetrics):  # type: ignore[misc]
    """vLLM's NIXL metrics and ours; the label ``reason`` is one of ``Refusal`` or of ``Direct``."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        _unregister_ours()
        self._ours: list[tuple[str, dict[int, Any]]] = []
        for key, name, documentation in _COUNTERS:
            counter = self._counter_cls(name=name, documentation=documentation, labelnames=labelnames)
            self._ours.append((key, self._per_engine(counter, per_engine_labelvalues)))
        self._counted: list[tuple[str, dict[int, Any]]] = []
        for key, name, documentation in (_TRANSFERS, *_COUNTED):
            counter = self._counter_cls(name=name, documentation=documentation, labelnames=labelnames)
            self._counted.append((key, self._per_engine(counter, per_engine_labelvalues)))
        self._reasons: list[tuple[str, dict[int, dict[str, Any]]]] = []
        for (key, name, documentation), reasons in ((_REFUSED, Refusal), (_DIRECT, Direct)):
            counter = self._counter_cls(name=name, documentation=documentation, labelnames=[*labelnames, "reason"])
            by_engine = {
                engine: {reason.value: counter.labels(*values, reason.value) for reason in reasons}
                for engine, values in per_engine_labelvalues.items()
            }
            self._reasons.append((key, by_engine))

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count one payload of statistics."""
        super().observe(transfer_stats_data, engine_idx)
        for key, counters in self._ours:
            counters[engine_idx].inc(sum(transfer_stats_data.get(key, ())))
        for key, counters in self._counted:
            counters[engine_idx].inc(len(transfer_stats_data.get(key, ())))
        for key, by_engine in self._reasons:
            for reason in transfer_stats_data.get(key, ()):
                by_engine[engine_idx][reason].inc()

    @staticmethod
    def _per_engine(counter: Any, labelvalues: dict[int, list[object]]) -> dict[int, Any]:
        return {engine: counter.labels(*values) for engine, values in labelvalues.items()}


def _unregister_ours() -> None:
    """Forget counters of an earlier engine in this process, as vLLM does with its own metrics."""
    ours = {name.removesuffix("_total") for _, name, _ in (*_COUNTERS, *_COUNTED, _TRANSFERS, _REFUSED, _DIRECT)}
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", None) in ours:
            REGISTRY.unregister(collector)
