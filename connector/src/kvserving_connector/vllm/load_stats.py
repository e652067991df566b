"""Counters of loads from the tiers, beside vLLM's own offloading series and on the same path.

The scheduler's ledger counts, vLLM's self-describing payload carries the numbers to the API server, and the Prometheus
class counts ours there before vLLM's sees the rest.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats, OffloadPromMetrics

from kvserving_connector.core.cost import CostModel
from kvserving_connector.core.loads import LoadTally
from kvserving_connector.vllm.series import OF_LOADS, OF_STORES, load_samples, unregister

_OURS = {series.name: series for series in OF_LOADS}


def load_stats(tally: LoadTally, model: CostModel) -> Any:
    """Return the tally, and the model's estimates as they are now, as vLLM's statistics."""
    stats = OffloadingConnectorStats()
    for series, value, labels in load_samples(tally, model):
        (stats.set_gauge if series.gauge else stats.increase_counter)(series.name, value, labels)
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
        # vLLM makes the store tier's series, and does not forget them either.
        unregister((*OF_LOADS, *OF_STORES))
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._ours: dict[tuple[int, str, tuple[str, ...]], Any] = {}
        for series in OF_LOADS:
            kind = self._gauge_cls if series.gauge else self._counter_cls
            metric = kind(name=series.name, documentation=series.text, labelnames=[*labelnames, *series.labelnames])
            for engine, values in per_engine_labelvalues.items():
                for labels in series.labelvalues:
                    self._ours[engine, series.name, labels] = metric.labels(*values, *labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count one payload of statistics."""
        values: dict[str, dict[tuple[str, ...], float]] = transfer_stats_data.get("data", {})
        ours = values.keys() & _OURS.keys()
        for name in ours:
            for labels, value in values[name].items():
                metric = self._ours[engine_idx, name, tuple(labels)]
                (metric.set if _OURS[name].gauge else metric.inc)(value)
        # By name, not by prefix: the store tier's counters begin alike and are vLLM's to count.
        theirs = {name: value for name, value in values.items() if name not in ours}
        super().observe({**transfer_stats_data, "data": theirs}, engine_idx)
