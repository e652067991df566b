"""Claims that pods of an object mount, and the storage classes that make their volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...control.asks import lacking as lacking_room
from ...control.claims import Claims, lacking
from ...control.pods import PodState, pod_state
from ...plan.claim_sources import claim_source
from ..facts import Body, Live, ObjectFacts, name_of
from ..findings import Finding, Severity, error, warning

_NO_CLASS = "install a provisioner of volumes that can do ReadWriteMany (such as NFS or CephFS) with its storage class"


def findings(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    """Findings about the claims that the object's pods mount."""
    there = [pod for pod in live.pods if "deletionTimestamp" not in pod["metadata"]]
    waiting = {name for state in map(pod_state, there) if held(state) for name in state.claims}
    for name, claim in live.claims.items():
        where = f"PersistentVolumeClaim {name}"
        if claim is None:
            yield error(
                "claim-missing",
                where,
                "it does not exist",
                why="pods that mount it stay Pending",
                fix="create the claim, or name another one in spec.model or spec.cache",
            )
            continue
        spec: Mapping[str, Any] = claim.get("spec") or {}
        if (claim.get("status") or {}).get("phase") != "Bound":
            yield _unbound(facts, live, name, claim, waiting=name in waiting)
        modes = set(spec.get("accessModes") or ())
        if len(live.pods_of("prefill", "decode")) > 1 and not modes & {"ReadWriteMany", "ReadOnlyMany"}:
            yield warning(
                "claim-of-one-node",
                where,
                f"its access modes are {', '.join(sorted(modes)) or 'none'}, and several engines mount it",
                why="all of them must run on one node; others wait in ContainerCreating",
                fix="use a claim with ReadWriteMany, or ReadOnlyMany for weights",
            )


def held(state: PodState) -> bool:
    """Whether a pod has no node because of its claims."""
    return lacking(state.name, state.unschedulable, state.claims, Claims()) is not None


def told(live: Live, state: PodState) -> bool:
    """Whether findings about claims say all of why a pod has no node."""
    return held(state) and not lacking_room(state.unschedulable) and any(name in live.claims for name in state.claims)


def way_out() -> str:
    """The way out of a pod that waits for claims which may not be read."""
    return "`kubectl get pvc` shows which of its claims has no volume, and `kubectl describe pvc` why"


def install_or_name(names: Sequence[str], field: str) -> str:
    """The way out of a claim without a class where there are those of ``names``: naming one needs one."""
    if not names:
        return _NO_CLASS
    return f"name one of these in {field}, able to do ReadWriteMany: {', '.join(names)}"


def _unbound(facts: ObjectFacts, live: Live, name: str, claim: Body, *, waiting: bool) -> Finding:
    spec: Mapping[str, Any] = (live.body.get("spec") if isinstance(live.body.get("spec"), Mapping) else None) or {}
    kept = (claim.get("spec") or {}).get("storageClassName")
    source = claim_source(name, facts.name.rpartition("/")[2], spec)
    made = source.endswith("storageClass") and f"PersistentVolumeClaim {name}" in map(name_of, live.children)
    known = None if live.classes is None else sorted(str(body["metadata"]["name"]) for body in live.classes)
    named = f"storage class {kept}" if kept else "it names no storage class"
    what = f"it is {(claim.get('status') or {}).get('phase') or 'new'} ({named})"
    if kept and known is not None and kept not in known:
        what += f", and there is no storage class {kept}"
    fix = "`kubectl describe pvc` says why; engines need a class that can do ReadWriteMany"
    if known is not None and (not kept or kept not in known):
        fix = install_or_name(known, source if made else "its storageClassName")
        fix += " and delete the claim, which is then made anew" if made and known else ""
    return Finding(
        Severity.ERROR if waiting else Severity.WARNING,
        "claim-unbound",
        f"PersistentVolumeClaim {name}",
        what,
        "pods that mount it stay Pending" + ("" if waiting else ", unless its class waits for the first of them"),
        fix,
    )
