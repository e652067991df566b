"""What to do with one child, and which children must go. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..api.v1alpha1 import API_VERSION, KIND
from ..plan import history, labels, workloads
from ..plan.types import Manifest, Plan
from . import drift
from .observe import Child, Serving, View


class Action(Enum):
    """What a child needs."""

    NOTHING = "nothing"
    CREATE = "create"
    UPDATE = "update"
    REFUSE = "refuse"
    WAIT = "wait"


@dataclass(frozen=True)
class Wanted:
    """One child as it should be: the body to apply, with owner and digest."""

    api_version: str
    kind: str
    name: str
    role: str
    serving: str
    """Name of the object that it is made for."""
    body: Mapping[str, Any]
    digest: str

    @property
    def identity(self) -> tuple[str, str]:
        """Kind and name."""
        return self.kind, self.name


def owner_reference(serving: Serving) -> dict[str, Any]:
    """Return the owner reference that every child of ``serving`` carries."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": serving.key.name,
        "uid": serving.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def wanted(serving: Serving, manifest: Manifest, live: Child | None) -> Wanted:
    """Return ``manifest`` as it is applied for ``serving`` where ``live`` stands.

    A number of replicas that the manifest leaves to a scaler, but that only the operator has
    set so far, is kept: to leave it out would reset it to one before the scaler speaks.
    """
    body: dict[str, Any] = dict(manifest)
    if live is not None and live.replicas is not None and drift.owns(live.fields, "spec", "replicas"):
        spec = body.get("spec")
        if isinstance(spec, Mapping) and "replicas" not in spec and manifest["kind"] in workloads.KINDS:
            body["spec"] = {**spec, "replicas": live.replicas}
    metadata = dict(body["metadata"])
    metadata["ownerReferences"] = [owner_reference(serving)]
    body["metadata"] = metadata
    digest = drift.digest(body)
    metadata["annotations"] = {**(metadata.get("annotations") or {}), drift.DIGEST: digest}
    role = (metadata.get("labels") or {}).get(labels.ROLE, "")
    return Wanted(str(body["apiVersion"]), str(body["kind"]), metadata["name"], role, serving.key.name, body, digest)


def decide(child: Wanted, live: Child | None, uid: str) -> Action:
    """Return what ``child`` needs where ``live`` stands; ``uid`` is that of the object that is to own it."""
    if live is None:
        return Action.CREATE
    if live.owner is None or live.owner.uid != uid:
        return Action.WAIT if former(live, child.serving) else Action.REFUSE
    if live.deleting:
        return Action.WAIT
    if live.digest == child.digest and drift.matches(child.body, live.fields):
        return Action.NOTHING
    return Action.UPDATE


def former(live: Child, name: str) -> bool:
    """Whether ``live`` is about to go: it is being deleted, or was left by a former object called ``name``."""
    left = live.owner is not None and live.owner.kind == KIND and live.owner.name == name
    return live.deleting or left


OTHER_NAME = "make the KVServing {name} anew under another name (no object can be renamed)"
"""The way out of a child's name that is taken."""


def refusal(live: Child, name: str) -> str:
    """Return the sentence about an object that has the name of a child of the object ``name`` and is not its child."""
    if live.deleting:
        return f"{live} is being deleted: waiting for its end, which finalizers may hold up"
    if (live.kind, live.namespace, live.name) == ("Service", "default", "kubernetes"):
        return f"{live} is the apiserver's own: leave it; {OTHER_NAME.format(name=name)}, or in another namespace"
    if live.owner is None:
        way_out = f"delete it if nothing needs it, or {OTHER_NAME.format(name=name)}"
        return f"{live} exists and belongs to no controller: it is left alone; {way_out}"
    whose = f"belongs to {live.owner.kind} {live.owner.name}"
    if former(live, name):
        return f"{live} {whose} of before and has to be deleted first: waiting for it"
    return f"{live} exists and {whose}: it is left alone; {OTHER_NAME.format(name=name)}"


def superfluous(view: View, plan: Plan, *, removed: Collection[str]) -> tuple[Child, ...]:
    """Return the owned children that ``plan`` does not name and that may go now.

    Children of another revision stay until the rollout has ``removed`` it: they serve meanwhile, and its spec stays
    as long as they do. Of other former specs the newest stay for ``undo``.
    """
    unplanned = [child for child in _unplanned(view, plan) if not child.deleting]
    others = [child for child in unplanned if not _is_history(child)]
    there = {child.revision for child in others} - set(removed)
    former = sorted(
        (c for c in unplanned if _is_history(c) and c.revision not in there), key=lambda c: (c.created, c.name)
    )
    found = [child for child in others if child.revision in ("", plan.revision) or child.revision in removed]
    return tuple(sorted(found, key=_last_first)) + tuple(former[: max(0, len(former) - history.KEPT)])


def _is_history(child: Child) -> bool:
    """Whether it holds the spec of a revision, and so may outlive the rest of it."""
    return child.kind == "ConfigMap" and child.revision != ""


def _unplanned(view: View, plan: Plan) -> Iterator[Child]:
    """Yield the owned children that ``plan`` does not name."""
    names = {(str(manifest["kind"]), manifest["metadata"]["name"]) for manifest in plan.objects}
    return (child for child in view.owned() if child.identity not in names)


def _last_first(child: Child) -> tuple[int, str, str]:
    # What others depend on goes last: routers and engines before policies, accounts and claims.
    order = {"HorizontalPodAutoscaler": 0, "ScaledObject": 0, "KVServingRole": 1}
    order |= {"Deployment": 2, "LeaderWorkerSet": 2, "StatefulSet": 3}
    return order.get(child.kind, 4), child.kind, child.name
