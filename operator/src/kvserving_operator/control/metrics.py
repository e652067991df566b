"""Metrics of the operator, each declared here once with bounded labels.

Per-object series carry the object's namespace and name, and go with the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from ..reasons import Reason
from .conditions import TYPES
from .events import EventKind
from .kube import Call
from .observe import Key
from .permissions import TABLE
from .verification import OUTCOMES

_RESOURCES = frozenset(resource.plural for resource in TABLE) | {"reviews", "discovery"}
_RESULTS = ("unchanged", "changed", "retry", "invalid", "gone", "error")
_REPLACED = (Reason.ENGINE_HUNG, Reason.PEER_STALE)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """All series of one process, in a registry of its own.

    Counters whose labels are known beforehand start at 0 for each: of a series that begins at 1 Prometheus counts no
    increase. Those of requests are not known: any verb may meet any status.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "kvserving_operator_reconciles",
            f"Reconciliations by result: {', '.join(_RESULTS)}.",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "kvserving_operator_reconcile_seconds",
            "Time of one reconciliation.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.requests = Counter(
            "kvserving_operator_api_requests",
            "Requests to the apiserver by verb, resource and status (0: no answer); watches are not counted.",
            ["verb", "resource", "status"],
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "kvserving_operator_api_request_seconds",
            "Time of requests to the apiserver.",
            ["verb"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.events = Counter(
            "kvserving_operator_events", "Events that were sent, by reason.", ["reason"], registry=self.registry
        )
        self.verifications = Counter(
            "kvserving_operator_verifications", "Transfer verifications by reason of the outcome.", ["reason"],
            registry=self.registry,
        )  # fmt: skip
        self.engines_replaced = Counter(
            "kvserving_operator_engines_replaced",
            f"Engine pods that were deleted, by reason: {' or '.join(_REPLACED)}.",
            ["reason"],
            registry=self.registry,
        )
        for result in _RESULTS:
            self.reconciles.labels(result)
        for kind in EventKind:
            self.events.labels(kind.reason)
        for outcome in OUTCOMES:
            self.verifications.labels(outcome)
        for reason in _REPLACED:
            self.engines_replaced.labels(reason)
        self.resyncs = Counter(
            "kvserving_operator_resyncs", "Comparisons of everything with the cluster.", registry=self.registry
        )
        self.healed = Counter(
            "kvserving_operator_resync_healed",
            "Entries that a resync corrected: the watch had missed a deletion.",
            registry=self.registry,
        )
        self.leader = Gauge(
            "kvserving_operator_leader", "1 while this process holds the Lease (or needs none).", registry=self.registry
        )
        self.loop_lag = Gauge(
            "kvserving_operator_loop_lag_seconds", "How late the event loop runs, as a thread sees it.",
            registry=self.registry,
        )  # fmt: skip
        self.last_success = Gauge(
            "kvserving_operator_last_success_timestamp_seconds", "Time of the last successful reconciliation.",
            registry=self.registry,
        )  # fmt: skip

    def watch_queue(self, depth: Callable[[], int], oldest: Callable[[], float]) -> None:
        """Export the queue's depth and the age of its first key."""
        Gauge("kvserving_operator_queue_depth", "Objects that wait for a worker.", registry=self.registry).set_function(
            depth
        )
        Gauge(
            "kvserving_operator_queue_age_seconds", "How long the first object has waited for a worker.",
            registry=self.registry,
        ).set_function(oldest)  # fmt: skip

    def watch_objects(self, statuses: Callable[[], Iterable[tuple[Key, Mapping[str, Any]]]]) -> None:
        """Export the conditions of every object, and whether it stands still, from ``statuses``, at each scrape."""
        self.registry.register(_Conditions(statuses))

    def request(self, call: Call) -> None:
        """Count one request."""
        resource = call.resource if call.resource in _RESOURCES else "other"
        self.requests.labels(call.verb, resource, str(call.status)).inc()
        self.request_seconds.labels(call.verb).observe(call.seconds)

    def render(self) -> bytes:
        """Return all series as Prometheus text."""
        return generate_latest(self.registry)


class _Conditions:
    """``kvserving_condition``, 1 for true, 0 for false, -1 for unknown, and ``kvserving_suspended``."""

    def __init__(self, statuses: Callable[[], Iterable[tuple[Key, Mapping[str, Any]]]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        """Yield both families."""
        family = GaugeMetricFamily(
            "kvserving_condition",
            "Conditions of each KVServing: 1 true, 0 false, -1 unknown.",
            labels=["namespace", "name", "condition"],
        )
        suspended = GaugeMetricFamily(
            "kvserving_suspended",
            "1 for a KVServing that nobody wants to run: it is suspended, or no engine is asked for; else 0.",
            labels=["namespace", "name"],
        )
        values = {"True": 1.0, "False": 0.0}
        for key, status in self._statuses():
            for condition in status.get("conditions") or ():
                if condition.get("type") in TYPES:
                    family.add_metric(
                        [key.namespace, key.name, condition["type"]], values.get(condition.get("status"), -1.0)
                    )
                if condition.get("type") == "Ready":
                    suspended.add_metric([key.namespace, key.name], condition.get("reason") == Reason.SUSPENDED)
        yield family
        yield suspended
