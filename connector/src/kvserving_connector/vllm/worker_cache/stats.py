"""Statistics of ``WorkerCacheConnector``, from the scheduler and every rank, carried by vLLM to the API server.

Everything is counted where it happens, merged on vLLM's way and shown by the API server's ``/metrics``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvserving_connector.core.cost import CostModel
from kvserving_connector.core.loads import LoadTally
from kvserving_connector.store.tally import Event
from kvserving_connector.vllm.series import (
    CAPACITY,
    FAILED,
    LOADED,
    LOST,
    OF_LOADS,
    OF_STORES,
    OF_WORKERS,
    PREFIX,
    PROMISED,
    SAVED,
    STORE,
    TRACKED,
    USED,
    load_samples,
    unregister,
)

__all__ = [
    "CAPACITY",
    "FAILED",
    "LOADED",
    "LOST",
    "PROMISED",
    "SAVED",
    "TRACKED",
    "USED",
    "WorkerCachePromMetrics",
    "WorkerCacheStats",
]

_ALL = {series.name: series for series in (*OF_WORKERS, *OF_LOADS, *OF_STORES)}
_COUNTS, _LEVELS = "counts", "levels"


class WorkerCacheStats(KVConnectorStats):  # type: ignore[misc]
    """Counts, which add up, and levels, of which each source's last one holds.

    ``data`` has plain types and string keys only: ``counts`` by series and label, ``levels`` by series, label and
    source; the label is empty where the series has none. A level of several sources is their sum.
    """

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data={} if data is None else data)
        for kind in (_COUNTS, _LEVELS):
            self.data.setdefault(kind, {})

    def add(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        """Add to a counter. Raises ValueError for a name that is no counter of ours, and for a label without series."""
        label = _label(name, labels, gauge=False)
        counts = self.data[_COUNTS].setdefault(name, {})
        counts[label] = counts.get(label, 0) + value

    def level(self, name: str, value: float, labels: tuple[str, ...] = (), *, rank: int | None = None) -> None:
        """Set a gauge's part of one rank, or of the scheduler (None). Raises ValueError as ``add`` does."""
        label = _label(name, labels, gauge=True)
        self.data[_LEVELS].setdefault(name, {}).setdefault(label, {})["" if rank is None else str(rank)] = value

    def add_store(self, counts: Mapping[tuple[Event, str], int]) -> None:
        """Add what the store's tally counted (``Tally.take``)."""
        for (event, label), number in counts.items():
            self.add(STORE[event].name, number, (label,) if label else ())

    def add_loads(self, tally: LoadTally, model: CostModel) -> None:
        """Add what was decided about loads, with the model's estimates as they are now."""
        for series, value, labels in load_samples(tally, model):
            (self.level if series.gauge else self.add)(series.name, value, labels)

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {_COUNTS: {}, _LEVELS: {}}

    def aggregate(self, other: KVConnectorStats) -> WorkerCacheStats:
        """Take in another rank's or a later object: counts add up, each of its levels replaces its source's."""
        for name, counts in other.data[_COUNTS].items():
            mine = self.data[_COUNTS].setdefault(name, {})
            for label, value in counts.items():
                mine[label] = mine.get(label, 0) + value
        for name, levels in other.data[_LEVELS].items():
            for label, sources in levels.items():
                self.data[_LEVELS].setdefault(name, {}).setdefault(label, {}).update(sources)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return one number per series and label, for vLLM's log line."""
        counts = {
            _short(name, label): value
            for name, by_label in self.data[_COUNTS].items()
            for label, value in by_label.items()
        }
        levels = {
            _short(name, label): sum(sources.values())
            for name, by_label in self.data[_LEVELS].items()
            for label, sources in by_label.items()
        }
        return counts | levels

    def is_empty(self) -> bool:
        """Whether nothing was noted; a level of 0 is something."""
        return not any(self.data.values())


class WorkerCachePromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """``kvserving:worker_cache_*``, and the series of loads and of the store; every one starts at 0."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        unregister(_ALL.values())
        self._metrics: dict[tuple[int, str, str], Any] = {}
        # A step in which a rank says nothing leaves its part as it was.
        self._levels: dict[tuple[int, str, str], dict[str, float]] = {}
        for series in _ALL.values():
            kind, mode = (
                (self._gauge_cls, {"multiprocess_mode": "mostrecent"}) if series.gauge else (self._counter_cls, {})
            )
            metric = kind(
                name=series.name, documentation=series.text, labelnames=[*labelnames, *series.labelnames], **mode
            )
            for engine, values in per_engine_labelvalues.items():
                for labels in series.labelvalues:
                    self._metrics[engine, series.name, "".join(labels)] = metric.labels(*values, *labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count one payload of statistics (``WorkerCacheStats.data``)."""
        for name, counts in transfer_stats_data.get(_COUNTS, {}).items():
            for label, value in counts.items():
                self._metrics[engine_idx, name, label].inc(value)
        for name, levels in transfer_stats_data.get(_LEVELS, {}).items():
            for label, sources in levels.items():
                known = self._levels.setdefault((engine_idx, name, label), {})
                known.update(sources)
                self._metrics[engine_idx, name, label].set(sum(known.values()))


def _label(name: str, labels: tuple[str, ...], *, gauge: bool) -> str:
    series = _ALL.get(name)
    if series is None or series.gauge is not gauge:
        kind = "gauge" if gauge else "counter"
        raise ValueError(f"name={name!r} is no {kind} of the worker cache; use one of the names of this module")
    # Enums become plain strings: the label crosses processes, whose decoder knows no enum.
    plain = tuple(str(label) for label in labels)
    if plain not in series.labelvalues:
        known = ", ".join(series.values) or "none"
        raise ValueError(f"labels={plain!r} of {name} cannot be; label {series.label}: {known}")
    return "".join(plain)


def _short(name: str, label: str) -> str:
    return f"{name.removeprefix(PREFIX)} {label}".rstrip()
