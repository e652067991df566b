"""Kinds of children that make pods, and where their pods' templates are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENGINES = ("Deployment", "LeaderWorkerSet")
"""Kinds that engines of a role may be made by; routers are made by the first."""
KINDS = (*ENGINES, "StatefulSet")


def pod_template(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The template of the pods that a workload is asked through: for a LeaderWorkerSet, of its leaders.

    Empty for what makes no pods.
    """
    spec = workload.get("spec") or {}
    found = (spec.get("leaderWorkerTemplate") or {}).get("leaderTemplate") or spec.get("template") or {}
    return found if isinstance(found, Mapping) else {}


def pod_templates(workload: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The templates of all pods of a workload: two for a LeaderWorkerSet, none for what makes no pods."""
    spec = workload.get("spec") or {}
    groups = spec.get("leaderWorkerTemplate") or {}
    found = (groups.get("leaderTemplate"), groups.get("workerTemplate"), spec.get("template"))
    return tuple(template for template in found if isinstance(template, Mapping) and template)


def pods_each(workload: Mapping[str, Any]) -> int:
    """Pods that each replica of a workload is made of."""
    size = ((workload.get("spec") or {}).get("leaderWorkerTemplate") or {}).get("size")
    return size if isinstance(size, int) else 1
