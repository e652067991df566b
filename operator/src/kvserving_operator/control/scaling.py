"""Roles that are scaled: what is asked for, what a new scale target starts with, and why scaling fails. Pure.

The number in a scale target is its scalers'. The operator gives it once, so that no scaler takes an absent number for
0, and keeps it while nobody else has set one: to leave it out would take it away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ..api import serving_role
from ..api.v1alpha1 import API_VERSION, RoleName
from ..plan import workloads
from ..plan.scaling import Numbers
from ..plan.types import Manifest, Plan
from ..reasons import Reason
from . import drift
from .failures import Problem
from .observe import Child, View
from .scalers import SCALERS, Scale

KINDS = (*SCALERS, serving_role.KIND)
ROLES: tuple[RoleName, ...] = ("prefill", "decode")


def asked(view: View) -> dict[RoleName, int]:
    """Return how many engines scalers ask for, by role.

    Where a role has no scale target, or one without a number, it is what was asked for last: a target that was deleted
    by hand, or is made for the first time, takes no engine away. A role that had none is absent then.
    """
    found: dict[RoleName, int] = {}
    targets = {child.role: child for child in view.owned() if child.kind == serving_role.KIND}
    for role in ROLES:
        target = targets.get(role)
        if target is not None and target.replicas is not None:
            found[role] = target.replicas
        elif last := _last(view, role):
            found[role] = last
    return found


def seeded(view: View, manifest: Manifest, live: Child | None) -> Manifest:
    """Return ``manifest`` as it is to be applied where ``live`` stands: a scale target with its number, where the
    operator has to say one."""
    if manifest["kind"] != serving_role.KIND:
        return manifest
    spec = manifest["spec"]
    if live is None or live.replicas is None:
        number = min(max(_last(view, spec["role"]), spec["bounds"]["min"]), spec["bounds"]["max"])
    elif drift.owns(live.fields, "spec", "replicas"):
        number = live.replicas
    else:
        return manifest
    return {**manifest, "spec": {**spec, "replicas": number}}


def carries_number(manifest: Mapping[str, Any]) -> bool:
    """Whether ``manifest`` is a scale target with a number, which a scaler may have changed since it was read."""
    return manifest["kind"] == serving_role.KIND and "replicas" in manifest["spec"]


def targets(view: View, plan: Plan) -> Iterator[tuple[Child, Manifest]]:
    """Yield the planned scale targets that are there, with their manifests."""
    for manifest in plan.objects:
        child = view.children.get((str(manifest["kind"]), manifest["metadata"]["name"]))
        ours = child is not None and child.owner is not None and child.owner.uid == view.serving.uid
        if manifest["kind"] == serving_role.KIND and child is not None and ours and not child.deleting:
            yield child, manifest


def shown(view: View, child: Child, manifest: Manifest) -> Scale:
    """Return what the status of a scale target should say: its selector, and how many pods that matches."""
    generation = child.scale.generation if child.scale is not None else 0
    count = sum(pod.role == child.role and not (pod.deleting or pod.ended) for pod in view.pods)
    return Scale(generation, generation, count, manifest["spec"]["selector"])


def status(view: View, child: Child, scale: Scale) -> dict[str, Any]:
    """Return the body that applies ``scale`` as the status of this very scale target."""
    metadata = {"name": child.name, "namespace": view.serving.key.namespace, "uid": child.uid}
    said = {"observedGeneration": scale.observed, "replicas": scale.replicas, "selector": scale.selector}
    return {"apiVersion": API_VERSION, "kind": serving_role.KIND, "metadata": metadata, "status": said}


def standing(
    view: View, plan: Plan, problems: Mapping[tuple[str, str], Problem], wanted: Numbers | None
) -> tuple[Literal["True", "False"], Reason, str] | None:
    """Return whether the numbers of engines follow the scalers, with reason and sentence; ``None`` without a scaler."""
    planned = [(str(m["kind"]), m["metadata"]["name"]) for m in plan.objects if m["kind"] in KINDS]
    if not planned:
        return None
    for identity in planned:
        if (found := problems.get(identity)) is not None:
            return "False", found.reason, found.message
    if (hindrance := _hindrance(view, plan)) is not None:
        return "False", *hindrance
    if wanted is not None and wanted.unmet:
        return "False", Reason.RATIO_UNMET, wanted.unmet
    notes = "".join(f"; {note}" for note in (wanted.notes if wanted is not None else ()))
    return "True", Reason.READY, f"scale targets and scalers are in place{notes}"


def _hindrance(view: View, plan: Plan) -> tuple[Reason, str] | None:
    for manifest in plan.objects:
        child = view.children.get((str(manifest["kind"]), manifest["metadata"]["name"]))
        if child is None or child.kind not in SCALERS:
            continue
        for kind, reason, message in child.failing:
            who = f"{child.kind} {child.name}"
            if reason == "ScalingDisabled":
                return Reason.SUSPENDED, f"{who} rests while 0 {child.role} engines are asked for: ask for one or more"
            if kind == "AbleToScale":
                return Reason.SCALER_FAILED, f"{who}: {message}"
            if not any(pod.role == child.role and pod.ready for pod in view.pods):
                return Reason.STARTING, f"{who} has no metrics before the first {child.role} engine is ready"
            return Reason.METRICS_UNAVAILABLE, f"{who}: {message}"
    return None


def recorded(status: Mapping[str, Any], role: str) -> int | None:
    """Return how many engines of a role were asked for, by the status of the object; ``None`` where it says nothing.

    It is the number of all revisions together, which no step of a rollout changes.
    """
    roles = status.get("roles")
    told = roles.get(role) if isinstance(roles, Mapping) else None
    number = told.get("replicas") if isinstance(told, Mapping) else None
    return number if isinstance(number, int) and number >= 0 else None


def _last(view: View, role: str) -> int:
    """How many engines of the role were asked for last, where no scale target says it; 0 where there were none."""
    if number := recorded(view.serving.status, role):
        return number
    # Of several revisions one never has more than what is asked for; all of them together have a rollout's surge.
    found = (child.workload for child in view.owned() if child.kind in workloads.ENGINES and child.role == role)
    return max((workload.replicas for workload in found if workload is not None), default=0)
