"""Statistics of ``MultiConnector``: its own counts and its children's, carried by vLLM to the API server.

vLLM keys children's statistics by class name and finds the class in its registry. A class from another package may
have the name of one of vLLM's, or not be registered at all, so its key here is ``module:class``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiKVConnectorPromMetrics,
    MultiKVConnectorStats,
)

from kvserving_connector.compat import require
from kvserving_connector.core.selection import COUNTS, PENDING
from kvserving_connector.vllm.series import CHOICES

_capabilities = require()

SELECTION = "selection"


class SelectionStats(KVConnectorStats):  # type: ignore[misc]
    """Counts by name and child, as ``Selection.drain`` returns them; loads under way are a level, not a count."""

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, dict[str, int]] = {}

    def aggregate(self, other: KVConnectorStats) -> SelectionStats:
        """Add a later statistics object's counts and take its level."""
        for name in COUNTS:
            counts = self.data.setdefault(name, {})
            for label, count in other.data.get(name, {}).items():
                counts[label] = counts.get(label, 0) + count
        if PENDING in other.data:
            self.data[PENDING] = dict(other.data[PENDING])
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return one number per name and child, for vLLM's log line."""
        return {f"{label} {name}": count for name, counts in self.data.items() for label, count in counts.items()}

    def is_empty(self) -> bool:
        """Whether nothing was noted; a level of 0 is something."""
        return not any(self.data.values())


class SelectionPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """``vllm:kv_connector_mc_*``, labelled by ``connector``; every child starts at 0."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
        children: Sequence[str],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        names = [*labelnames, "connector"]
        metrics = {
            name: self._counter_cls(name=CHOICES[name].name, documentation=CHOICES[name].text, labelnames=names)
            for name in COUNTS
        }
        metrics[PENDING] = self._gauge_cls(
            name=CHOICES[PENDING].name,
            documentation=CHOICES[PENDING].text,
            multiprocess_mode="mostrecent",
            labelnames=names,
        )
        self._series = {
            (engine, name, child): metric.labels(*values, child)
            for name, metric in metrics.items()
            for engine, values in per_engine_labelvalues.items()
            for child in children
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Count one payload of statistics."""
        for name in COUNTS:
            for child, count in transfer_stats_data.get(name, {}).items():
                self._series[engine_idx, name, child].inc(count)
        for child, level in transfer_stats_data.get(PENDING, {}).items():
            self._series[engine_idx, PENDING, child].set(level)


class MultiPromMetrics(MultiKVConnectorPromMetrics):  # type: ignore[misc]
    """vLLM's, which passes each child's statistics on; those of a child without metrics of its own are left out.

    vLLM before 0.33 ends the API server's loop there.
    """

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Record one payload of statistics."""
        known = {key: value for key, value in transfer_stats_data.items() if key in self._prom_metrics}
        super().observe(known, engine_idx)


def stats_key(connector: type) -> str:
    """Return the key of a child class's statistics: its name when it is vLLM's, else ``module:class``."""
    module = connector.__module__
    return connector.__name__ if module.partition(".")[0] == "vllm" else f"{module}:{connector.__name__}"


def rebuild(data: Mapping[str, Any]) -> tuple[dict[str, KVConnectorStats], dict[str, Any]]:
    """Return the statistics that are ours to rebuild from a payload, and the payload's rest, which vLLM rebuilds.

    A statistics object stays what it is. A child class that rebuilds nothing is left out.
    """
    built: dict[str, KVConnectorStats] = {}
    rest: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, KVConnectorStats):
            built[key] = value
        elif key == SELECTION:
            built[key] = SelectionStats(data=_payload(value))
        elif ":" in key:
            module, _, name = key.partition(":")
            connector = getattr(importlib.import_module(module), name)
            stats = connector.build_kv_connector_stats(data=_payload(value))
            if stats is not None:
                built[key] = stats
        else:
            rest[key] = value
    return built, rest


def merged(children: Any, keys: Mapping[str, str], counts: dict[str, dict[str, int]] | None) -> Any:
    """Return vLLM's statistics of the ``children`` (or None) under our ``keys`` by class name, with our counts."""
    data = {keys.get(name, name): stats for name, stats in children.data.items()} if children is not None else {}
    if counts is not None:
        data[SELECTION] = SelectionStats(data=counts)
    return MultiKVConnectorStats(data=data) if data else None


def _payload(value: Any) -> dict[str, Any]:
    # vLLM before 0.30 sends the object as it is, so that its one field is the payload.
    payload: dict[str, Any] = value if _capabilities.stats_to_dict else value["data"]
    return payload
