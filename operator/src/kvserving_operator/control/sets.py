"""The revisioned sets of one object, as they are in the cluster, in the words of the rollout's planner. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..plan import labels
from ..plan.rollout_types import ROLES, Observation, Pods, RevisionSet, SetRole, Verification
from ..plan.workloads import ENGINES
from .observe import Child, View
from .pods import PodState


@dataclass(frozen=True)
class Proof:
    """What is known about the transfer inside one set; ``message`` is the sentence of a failed verification."""

    verification: Verification
    message: str = ""


# What a kubelet takes to end a pod whose grace is over, and what two clocks may differ by.
_KILL_SECONDS = 30.0
UNPROVED = Proof(Verification.UNKNOWN)


def workloads(view: View, revision: str) -> dict[SetRole, Child]:
    """What makes the pods of one revision, by role; its replicas are engines and routers."""
    found = (c for c in view.owned() if c.kind in ENGINES and c.revision == revision)
    return {role: child for child in found for role in ROLES if child.role == role}


def members(view: View) -> tuple[PodState, ...]:
    """The pods of the object's workloads, with their roles and revisions by these: labels of pods can be edited.

    A pod that was put aside by its labels belongs to none. One that is going outlives its workload.
    """
    made = {child.name: child for child in view.owned() if child.kind in ENGINES}
    found = []
    for pod in view.pods:
        maker = made.get(pod.owner) or made.get(pod.owner.rpartition("-")[0])
        if maker is not None and pod.role in (maker.role, labels.worker(maker.role)):
            found.append(replace(pod, revision=maker.revision))
        elif maker is not None:
            found.append(replace(pod, revision=maker.revision, role=maker.role))
        elif pod.owner and pod.deleting:
            found.append(pod)
    return tuple(found)


def serving(view: View) -> tuple[PodState, ...]:
    """The members that take requests. They tell at once; a workload counts its ready pods a while later."""
    return tuple(pod for pod in members(view) if pod.serving)


def revisions(view: View) -> tuple[str, ...]:
    """Every revision of which the cluster has a child or a pod, oldest first, as far as workloads tell."""
    # The ConfigMap with the spec of a revision outlives the rest of it.
    born = {child.revision: "" for child in view.owned() if child.revision and child.kind != "ConfigMap"}
    born |= {pod.revision: "" for pod in members(view) if pod.revision and pod.role in ROLES and not pod.ended}
    for child in view.owned():
        if child.kind in ENGINES and child.revision:
            born[child.revision] = min(filter(None, (born[child.revision], child.created)), default="")
    return tuple(sorted(born, key=lambda revision: (born[revision], revision)))


def traffic(view: View, *, routed: bool, told: Sequence[str]) -> tuple[str, ...]:
    """The revisions behind the Service, newest first; where the routers are the user's, those of the status."""
    known = tuple(reversed(revisions(view)))
    if not routed:
        return tuple(revision for revision in known if revision in told)
    return tuple(revision for revision in known if _behind(workloads(view, revision).get("router")))


def observe(view: View, behind: Sequence[str], proofs: Mapping[str, Proof], now: float) -> Observation:
    """The sets with their pods, proofs and traffic at ``now``, in Unix seconds.

    What only the caller remembers is left at its defaults.
    """
    return Observation(
        sets=tuple(
            _set(view, revision, number, revision in behind, proofs.get(revision, UNPROVED), now)
            for number, revision in enumerate(revisions(view), start=1)
        ),
        traffic=tuple(behind),
    )


def _set(view: View, revision: str, number: int, behind: bool, proof: Proof, now: float) -> RevisionSet:
    owned = workloads(view, revision)
    pods = [pod for pod in members(view) if pod.revision == revision and not pod.ended]

    def of(role: SetRole) -> Pods | None:
        mine = [pod for pod in pods if pod.role == role]
        workers = [pod for pod in pods if pod.role == labels.worker(role)]
        return _pods(owned.get(role), mine, workers, behind, now) if mine or role in owned else None

    return RevisionSet(
        revision,
        number,
        decode=of("decode") or Pods(),
        prefill=of("prefill"),
        router=of("router"),
        verification=proof.verification,
        failure=proof.message,
    )


def _pods(child: Child | None, pods: Sequence[PodState], workers: Sequence[PodState], behind: bool, now: float) -> Pods:
    """The pods that take requests, each of which stands for an engine; ``workers`` are further pods of theirs."""
    unplaced = {leader_of(pod) for pod in workers if pod.unschedulable}

    def ready(pod: PodState) -> bool:
        # A router from before its set got traffic is no way in for clients.
        return pod.serving and (pod.traffic or pod.role != "router" or not behind)

    wanted = child.workload.replicas if child is not None and child.workload and not child.deleting else 0
    return Pods(
        wanted=wanted,
        existing=len(pods),
        ready=sum(map(ready, pods)),
        draining=sum(pod.deleting for pod in pods),
        overdue=next((pod.name for pod in pods if pod.deleting and pod.leaves_by + _KILL_SECONDS < now), ""),
        pending=sum((bool(pod.unschedulable) or pod.name in unplaced) and not pod.deleting for pod in pods),
    )


def leader_of(worker: PodState) -> str:
    """The name of the leader of a further pod of an engine, which has its own with a number behind it."""
    return worker.name.rpartition("-")[0]


def _behind(router: Child | None) -> bool:
    return router is not None and not router.deleting and router.workload is not None and router.workload.traffic
