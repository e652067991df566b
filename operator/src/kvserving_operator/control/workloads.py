"""Workloads as far as decisions need them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..plan import labels
from ..plan.workloads import KINDS, pod_template
from . import drift
from .drift import Fields


@dataclass(frozen=True, slots=True)
class Workload:
    """Numbers and conditions of a Deployment, LeaderWorkerSet or StatefulSet; ``current`` when they are of its present
    spec. Those of a LeaderWorkerSet count groups, each of which is one engine."""

    replicas: int
    ready: int
    updated: int
    current: bool
    engine: tuple[str, str] | None
    """vLLM version and image as the operator noted them; ``None`` where someone else did, or nobody."""
    model: str
    """Name by which its engines serve the model; empty where it was not noted."""
    traffic: bool
    """Whether its pods are routers behind the Service."""
    total: int
    """Pods of every template that was rolled out, old ones included."""
    conditions: tuple[tuple[str, str, str, str], ...]
    """(type, status, reason, message)"""

    def condition(self, kind: str) -> tuple[str, str, str] | None:
        """Return (status, reason, message) of one condition."""
        return next((rest for found, *rest in self.conditions if found == kind), None)  # type: ignore[return-value]


def workload_of(body: Mapping[str, Any], kind: str, fields: Fields) -> Workload | None:
    """Return the numbers of an object that makes pods; ``None`` for one that makes none."""
    if kind not in KINDS:
        return None
    spec, status = body.get("spec") or {}, body.get("status") or {}
    wanted = spec.get("replicas")
    return Workload(
        replicas=1 if wanted is None else wanted,
        ready=status.get("readyReplicas") or 0,
        updated=status.get("updatedReplicas") or 0,
        current=_current(body, kind),
        engine=_engine(body["metadata"], fields),
        model=(body["metadata"].get("annotations") or {}).get(labels.SERVED_MODEL, ""),
        traffic=_pod_labels(body).get(labels.TRAFFIC) == labels.ON,
        total=status.get("replicas") or 0,
        conditions=tuple(
            (c.get("type", ""), c.get("status", ""), c.get("reason", ""), c.get("message", ""))
            for c in status.get("conditions") or ()
        ),
    )


def _current(body: Mapping[str, Any], kind: str) -> bool:
    """Whether the status is of the present spec. LeaderWorkerSets say of which it is since version 0.9 alone."""
    status = body.get("status") or {}
    if kind == "LeaderWorkerSet" and "observedGeneration" not in status:
        return bool(status.get("conditions"))
    return (status.get("observedGeneration") or 0) >= (body["metadata"].get("generation") or 0)


def _engine(metadata: Mapping[str, Any], fields: Fields) -> tuple[str, str] | None:
    marks, names = metadata.get("annotations") or {}, (labels.ENGINE_VERSION, labels.ENGINE_IMAGE)
    if not all(name in marks and drift.owns(fields, "metadata", "annotations", name) for name in names):
        return None
    return marks[labels.ENGINE_VERSION], marks[labels.ENGINE_IMAGE]


def _pod_labels(body: Mapping[str, Any]) -> Mapping[str, str]:
    return (pod_template(body).get("metadata") or {}).get("labels") or {}
