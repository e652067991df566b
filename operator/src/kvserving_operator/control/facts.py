"""What is known of one object at one moment, and which of its pods and revisions serve by that. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ..api.faults import Fault
from ..plan.rollout_types import ROLES, Phase
from ..plan.scaling import Numbers
from ..plan.types import Plan
from ..plan.workloads import ENGINES
from ..reasons import Reason
from . import sets
from .failures import Problem
from .observe import Child, View
from .pods import PodState
from .rollouts import Rollout

Status = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Condition:
    """One condition without its times."""

    type: str
    status: Status
    reason: Reason
    message: str

    @property
    def holds(self) -> bool:
        """Whether the status is True."""
        return self.status == "True"


@dataclass(frozen=True)
class Transfer:
    """What is known about the transfer: the status of ``TransferVerified`` with reason and sentence."""

    status: Status
    reason: Reason
    message: str


@dataclass(frozen=True)
class Facts:
    """Everything that conditions are made of.

    ``plan`` is ``None`` where ``faults`` forbid one; ``revision`` is then the one that runs.
    ``transfer`` is ``None`` in aggregated mode. ``scaling`` tells of the numbers of engines.
    """

    view: View
    plan: Plan | None
    revision: str
    disaggregated: bool
    routed: bool
    suspended: bool
    faults: tuple[Fault, ...] = ()
    scaling: Numbers | None = None
    problems: Mapping[tuple[str, str], Problem] = field(default_factory=dict)
    transfer: Transfer | None = None
    rollout: Rollout | None = None
    lost: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By role the pods that served and went although neither the spec nor the operator asked for it."""

    def wanted(self, role: str, otherwise: int) -> int:
        """How many pods of a role are asked for, of all revisions together."""
        count = self.rollout.wanted.count(role) if self.rollout is not None and role in ROLES else None
        return otherwise if count is None else count

    @cached_property
    def serving(self) -> tuple[PodState, ...]:
        """The pods of the object's workloads that take requests."""
        return sets.serving(self.view)

    def ready(self, child: Child) -> int:
        """How many pods of a workload are ready: no more than it counts, and than take requests by what they say."""
        assert child.workload is not None
        if child.kind in ENGINES:
            made = [pod for pod in self.serving if (pod.revision, pod.role) == (child.revision, child.role)]
        else:
            made = [pod for pod in self.view.pods if pod.owner == child.name and pod.serving]
        return min(child.workload.ready, len(made))

    @property
    def failed(self) -> Condition | None:
        """The rollout to the planned revision, where it has failed."""
        if self.rollout is None or self.rollout.phase is not Phase.STOPPED:
            return None
        return Condition("Progressing", "False", Reason.ROLLOUT_FAILED, self.rollout.message)


def workload(facts: Facts, role: str, kinds: Sequence[str] = ENGINES) -> Child | None:
    """Return the owned workload of a role in the revision that ``facts`` are about; stores have none."""
    for child in facts.view.owned():
        if child.kind in kinds and child.role == role and child.revision in ("", facts.revision):
            return child
    return None


def workloads(facts: Facts, role: str) -> list[Child]:
    """Return the owned workloads of a role, of every revision, whose state is known."""
    return [c for c in facts.view.owned() if c.kind in ENGINES and c.role == role and c.workload is not None]


def serving_revisions(facts: Facts) -> tuple[str, ...]:
    """Return the revisions that can serve a request now: in the traffic, with a pod of every role that takes requests.

    A router takes clients' requests where it is behind the Service."""
    roles = ["decode"]
    if facts.disaggregated:
        roles.append("prefill")
    if facts.routed:
        roles.append("router")
    staying = {(child.revision, child.role) for child in facts.view.owned() if child.revision and not child.deleting}
    found: dict[str, set[str]] = {}
    for pod in facts.serving:
        if (pod.revision, pod.role) in staying and (pod.traffic or pod.role != "router"):
            found.setdefault(pod.revision, set()).add(pod.role)
    whole = (revision for revision, there in found.items() if there.issuperset(roles))
    return tuple(sorted(r for r in whole if facts.rollout is None or r in facts.rollout.traffic))
