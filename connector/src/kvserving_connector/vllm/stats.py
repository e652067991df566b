"""Connector statistics: vLLM's NIXL series unchanged, and ours beside them on the same path.

The scheduler's desk counts, vLLM carries the lists to the API server, and the Prometheus class counts them there.
"""

from __future__ import annotations

from typing import Any

from kvserving_connector.compat import nixl_stats_module
from kvserving_connector.core.desk import Tally
from kvserving_connector.core.staging_desk import LoadTally, StagingTally
from kvserving_connector.vllm.series import (
    BY_REASON,
    COUNTED,
    OF_HANDOFFS,
    STAGED_LOADS,
    STAGED_WAITS,
    SUMMED,
    Series,
    unregister,
)

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
_ALL_KEYS = (*_KEYS, *_STAGING_KEYS, STAGED_LOADS, STAGED_WAITS)


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
    found.data[STAGED_LOADS], found.data[STAGED_WAITS] = loads.bytes, loads.waited
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
        unregister(OF_HANDOFFS)
        self._summed, self._counted, self._reasons = (
            {key: self._per_engine(series, labelnames, per_engine_labelvalues) for key, series in declared.items()}
            for declared in (SUMMED, COUNTED, BY_REASON)
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count one payload of statistics."""
        super().observe(transfer_stats_data, engine_idx)
        for key, counters in self._summed.items():
            counters[engine_idx, ()].inc(sum(transfer_stats_data.get(key, ())))
        for key, counters in self._counted.items():
            counters[engine_idx, ()].inc(len(transfer_stats_data.get(key, ())))
        for key, counters in self._reasons.items():
            for reason in transfer_stats_data.get(key, ()):
                counters[engine_idx, (reason,)].inc()

    def _per_engine(
        self, series: Series, labelnames: list[str], labelvalues: dict[int, list[object]]
    ) -> dict[tuple[int, tuple[str, ...]], Any]:
        counter = self._counter_cls(
            name=series.name, documentation=series.text, labelnames=[*labelnames, *series.labelnames]
        )
        return {
            (engine, labels): counter.labels(*values, *labels)
            for engine, values in labelvalues.items()
            for labels in series.labelvalues
        }
