"""Connector statistics: vLLM's NIXL series unchanged, and ours beside them on the same path.

The scheduler's desk counts, vLLM carries the lists to the API server, and the Prometheus class counts them there.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY

from kvserving_connector.compat import nixl_stats_module
from kvserving_connector.core.desk import Tally
from kvserving_connector.core.refusal import Refusal

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

# Statistics key, metric, help. "transfers" counts the entries of a list that holds one number per transfer.
_COUNTERS = (
    ("kvserving_signed", "kvserving:handoffs_signed_total", "Handoffs that this prefill engine signed."),
    ("kvserving_receipts", "kvserving:receipts_total", "Receipts given to probes."),
    ("kvserving_tokens", "kvserving:transfer_tokens_total", "Prompt tokens whose KV came from a prefill engine."),
    ("kvserving_bytes", "kvserving:transfer_bytes_total", "Bytes of KV received for finished requests, all ranks."),
    ("kvserving_seconds", "kvserving:transfer_seconds_total", "Seconds that transfers took, slowest rank of each."),
    ("kvserving_failed", "kvserving:transfer_failures_total", "Requests whose KV could not be loaded."),
)
_TRANSFERS = ("kvserving_tokens", "kvserving:transfers_total", "Requests served with KV from a prefill engine.")
_REFUSED = (
    "kvserving_refused",
    "kvserving:handoffs_refused_total",
    "Transfer parameters that the scheduler refused although they passed the API server.",
)


class HandoffStats(_nixl.NixlKVConnectorStats):  # type: ignore[misc]
    """vLLM's NIXL statistics with our lists; a payload without them is read as empty lists."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in _KEYS:
            self.data.setdefault(key, [])

    def reset(self) -> None:
        """Clear all lists."""
        super().reset()
        for key in _KEYS:
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


def from_worker(stats: Any) -> HandoffStats:
    """Return vLLM's worker statistics in our class, so that both can be merged."""
    return HandoffStats(data=dict(stats.data))


class HandoffPromMetrics(_nixl.NixlPromMetrics):  # type: ignore[misc]
    """vLLM's NIXL metrics and ours; the label ``reason`` is one of ``Refusal``."""

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
        transfers = self._counter_cls(name=_TRANSFERS[1], documentation=_TRANSFERS[2], labelnames=labelnames)
        self._transfers = self._per_engine(transfers, per_engine_labelvalues)
        refused = self._counter_cls(name=_REFUSED[1], documentation=_REFUSED[2], labelnames=[*labelnames, "reason"])
        self._refused = {
            engine: {reason.value: refused.labels(*values, reason.value) for reason in Refusal}
            for engine, values in per_engine_labelvalues.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count one payload of statistics."""
        super().observe(transfer_stats_data, engine_idx)
        for key, counters in self._ours:
            counters[engine_idx].inc(sum(transfer_stats_data.get(key, ())))
        self._transfers[engine_idx].inc(len(transfer_stats_data.get(_TRANSFERS[0], ())))
        for reason in transfer_stats_data.get(_REFUSED[0], ()):
            self._refused[engine_idx][reason].inc()

    @staticmethod
    def _per_engine(counter: Any, labelvalues: dict[int, list[object]]) -> dict[int, Any]:
        return {engine: counter.labels(*values) for engine, values in labelvalues.items()}


def _unregister_ours() -> None:
    """Forget counters of an earlier engine in this process, as vLLM does with its own metrics."""
    ours = {name.removesuffix("_total") for _, name, _ in (*_COUNTERS, _TRANSFERS, _REFUSED)}
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", None) in ours:
            REGISTRY.unregister(collector)
