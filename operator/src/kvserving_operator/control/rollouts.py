"""Rollouts of all objects: what the planner is told, what is remembered of it, and what its step makes of a plan.

Nothing but two facts outlives a step: which revision has failed, and how long there was no progress. Both are in the
status, so that an operator that restarts goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from .. import times
from ..api.v1alpha1 import KVServing, RoleName
from ..plan import labels, multinode
from ..plan.rollout import next_step
from ..plan.rollout_progress import reached
from ..plan.rollout_types import (
    ROLES,
    Drain,
    Fail,
    Insufficient,
    Observation,
    Phase,
    Remove,
    Scale,
    SetRole,
    Settings,
    Step,
    Switch,
    Wait,
    Wanted,
)
from ..plan.types import Manifest, Plan
from ..plan.workloads import ENGINES
from ..reasons import Reason
from . import sets
from .failures import Problem, named
from .observe import Child, View
from .rollout_clock import LOOK, RolloutClock
from .sets import Proof


@dataclass(frozen=True)
class Failure:
    """A rollout that failed. It holds for this ``generation`` of the object: a change of the spec tries anew, but for
    one that only suspends the object or ends that."""

    revision: str
    generation: int
    message: str


@dataclass(frozen=True)
class Adjustment:
    """What a workload of another revision is told: its replicas, whether its pods are behind the Service, and the
    labels of its own that someone edited."""

    child: Child
    replicas: int
    traffic: bool | None
    """``None`` leaves it: only routers have it."""


@dataclass(frozen=True)
class Rollout:
    """Where the rollout of one object is, and what is to be done now.

    ``counts`` are the numbers of pods of the planned revision, ``traffic`` the revisions behind the Service
    after this step. ``again`` is in how many seconds the deadline should be looked at.
    """

    step: Step
    observation: Observation
    wanted: Wanted
    counts: Mapping[SetRole, int]
    traffic: tuple[str, ...]
    adjustments: tuple[Adjustment, ...] = ()
    removed: frozenset[str] = frozenset()
    failure: Failure | None = None
    progressed_at: float = 0.0
    again: float | None = None

    @property
    def visible(self) -> bool:
        """Whether there is anything to tell: another revision is there, or it stands still."""
        others = any(s.revision != self.wanted.revision for s in self.observation.sets)
        return others or self.phase in (Phase.STOPPED, Phase.PAUSED)

    @property
    def resting(self) -> bool:
        """Whether it waits for somebody to ask for engines again."""
        return self.phase is Phase.PAUSED and self.wanted.off

    @property
    def phase(self) -> Phase:
        """Where it is."""
        return self.step.phase

    @property
    def reason(self) -> Reason:
        """What it waits for, or that it has failed."""
        if self.phase is Phase.STOPPED:
            return Reason.ROLLOUT_FAILED
        return next((d.reason for d in self.step.decisions if isinstance(d, (Wait, Insufficient))), Reason.ROLLING_OUT)

    @property
    def message(self) -> str:
        """The sentence of the condition."""
        if self.phase is Phase.STOPPED and self.failure is not None:
            return f"{self.failure.message}; change the spec, or run: kvserving rollout undo"
        said = [d.message for d in self.step.decisions if isinstance(d, (Wait, Insufficient, Fail))]
        return said[0] if said else "the next step is being taken"


@dataclass
class _Memory:
    clock: RolloutClock
    failure: Failure | None = None
    generation: int = 0
    revision: str = ""
    exchanging: bool = False
    changed: bool = False
    """Whether the last step had changes to make."""
    refused: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """What the object asked for when it was looked at last, ``suspend`` apart; empty in a process that did not."""


class Rollouts:
    """Decides for each object. It remembers what the status may not hold yet; without memory the status speaks."""

    def __init__(self, watched_until: Callable[[], float | None] = lambda: None) -> None:
        self._watched_until = watched_until
        self._memories: dict[str, _Memory] = {}

    def note(self, uid: str, problems: Mapping[tuple[str, str], Problem]) -> None:
        """Take note of what the last step of one object came to."""
        refused = sorted(named(kind, name, p) for (kind, name), p in problems.items() if kind in ENGINES)
        self._memories[uid].refused = refused[0] if refused else ""

    def forget(self, uid: str) -> None:
        """Drop what is remembered of one object."""
        self._memories.pop(uid, None)

    def decide(
        self,
        view: View,
        plan: Plan,
        serving: KVServing,
        wanted: Wanted,
        proofs: Mapping[str, Proof],
        now: datetime,
    ) -> Rollout:
        """The next step of one object. ``proofs`` are by revision, ``now`` is the wall clock."""
        uid, moment = view.serving.uid, now.timestamp()
        memory = self._memories.get(uid)
        if memory is None:
            memory = self._memories[uid] = _recall(view, moment, self._watched_until())
        memory.clock.look(moment)
        behind = sets.traffic(view, routed=wanted.router is not None, told=_told(view.serving.status))
        observed = sets.observe(view, behind, proofs, moment)
        if not behind and set(sets.revisions(view)) <= {plan.revision}:
            # A first set has nobody to take the traffic from, and its routers need not be made twice.
            observed = replace(observed, traffic=(plan.revision,))
        exchanging = any(r != plan.revision for r in (*(s.revision for s in observed.sets), *observed.traffic))
        _renew(memory, view, plan.revision, exchanging)
        memory.clock.note(reached(observed, plan.revision))
        endless = "the same changes are made again and again and do not last" if memory.changed else ""
        observed = replace(
            observed,
            failed=memory.failure.revision if memory.failure is not None else None,
            now=moment,
            progressed_at=memory.clock.since,
            refused=memory.refused or endless,
        )
        settings = _settings(serving, view)
        step = next_step(observed, wanted, settings)
        for failed in (d for d in step.decisions if isinstance(d, Fail)):
            memory.failure = Failure(failed.revision, view.serving.generation, failed.message)
        running = exchanging and step.phase is Phase.PROGRESSING and not wanted.off
        memory.clock.run(running)
        memory.changed = bool(step.changes)
        rest = settings.progress_deadline - (moment - memory.clock.since)
        return replace(
            _rollout(view, plan, observed, wanted, step),
            failure=memory.failure,
            progressed_at=memory.clock.progressed_at,
            again=max(1.0, min(LOOK, rest + 1.0)) if running else None,
        )


def shape(plan: Plan, rollout: Rollout) -> Plan:
    """The plan with the numbers of pods and the traffic of this step."""
    return replace(plan, objects=tuple(_shaped(m, plan.revision, rollout) for m in plan.objects))


def asked(serving: KVServing, plan: Plan, engines: Mapping[RoleName, int]) -> Wanted:
    """What the object asks for: ``engines`` by role, and its routers where the operator deploys them."""
    router = next((m for m in plan.objects if m["kind"] in ENGINES and _role(m) == "router"), None)
    return Wanted(
        plan.revision,
        decode=engines["decode"],
        prefill=engines.get("prefill") if serving.spec.prefill is not None else None,
        router=None if router is None else int(router["spec"]["replicas"]),
    )


def _rollout(view: View, plan: Plan, observed: Observation, wanted: Wanted, step: Step) -> Rollout:
    changes = step.changes
    counted = {(c.revision, c.role): c.count for c in changes if isinstance(c, (Scale, Drain))}
    switched = next((c.revisions for c in changes if isinstance(c, Switch)), None)
    behind = observed.traffic if switched is None else switched
    adjustments = []
    for known in observed.sets:
        if known.revision == plan.revision:
            continue
        for role, child in sets.workloads(view, known.revision).items():
            if child.workload is None or child.deleting:
                continue
            count = counted.get((known.revision, role), child.workload.replicas)
            into = known.revision in behind if role == "router" else None
            if into is False and child.workload.traffic:
                # Routers of another label would be made, to be stopped by the next step.
                count = 0
            told = (child.workload.replicas, child.workload.traffic if role == "router" else None)
            if (count, into) != told or child.edited:
                adjustments.append(Adjustment(child, count, into))
    present = {s.revision: s for s in observed.sets}.get(plan.revision)
    counts: dict[SetRole, int] = {}
    for role in ROLES:
        pods = present.pods(role) if present is not None else None
        counts[role] = counted.get((plan.revision, role), 0 if pods is None else pods.wanted)
    removed = frozenset(c.revision for c in changes if isinstance(c, Remove))
    return Rollout(step, observed, wanted, counts, behind, tuple(adjustments), removed)


def _settings(serving: KVServing, view: View) -> Settings:
    spec = serving.spec
    roles = [role for role in (spec.prefill, spec.decode) if role is not None]
    longest = max(role.startup_timeout.seconds + role.drain_timeout.seconds for role in roles)
    # Of a former revision there may be groups, too.
    groups = any(role.nodes > 1 for role in roles) or any(child.kind == multinode.KIND for child in view.owned())
    settings = Settings.of(spec.rollout, unready_first=not groups)
    # Engines that load for an hour make no progress that shows, and are no failure.
    return replace(settings, progress_deadline=max(settings.progress_deadline, float(longest)))


def _told(status: Mapping[str, Any]) -> tuple[str, ...]:
    """The revisions behind the Service, by the status."""
    rollout = status.get("rollout")
    listed = rollout.get("sets") if isinstance(rollout, Mapping) else None
    if not isinstance(listed, list):
        return (str(status.get("revision") or ""),)
    return tuple(str(s.get("revision")) for s in listed if isinstance(s, Mapping) and s.get("traffic"))


def _renew(memory: _Memory, view: View, revision: str, exchanging: bool) -> None:
    """Take note of what is asked for: another spec is another attempt, with a time of its own."""
    generation, former = view.serving.generation, memory.failure
    asked = {name: value for name, value in view.serving.spec.items() if name != "suspend"}
    if former is not None and former.generation != generation:
        same = former.generation == memory.generation and asked == memory.spec
        memory.failure = replace(former, generation=generation) if same else None
    asked_before = (memory.generation, memory.revision or revision)
    if asked_before != (generation, revision) or (exchanging and not memory.exchanging):
        memory.clock.restart()
    memory.generation, memory.spec, memory.revision, memory.exchanging = generation, asked, revision, exchanging


def _recall(view: View, now: float, watched_until: float | None) -> _Memory:
    """What the status says, as the last operator process left it; anyone may have edited it.

    ``watched_until`` is when that process still ran: no time counts in which nobody looked.
    """
    status = view.serving.status
    told = status.get("rollout")
    told = told if isinstance(told, Mapping) else {}
    since, seen = _seconds(told.get("progressedAt"), now), status.get("observedGeneration")
    if watched_until is not None:
        since += max(0.0, now - max(since, min(now, watched_until)))
    return _Memory(
        RolloutClock(since if told.get("phase") == Phase.PROGRESSING else now, now),
        failure=_failure(told.get("failed")),
        generation=seen if isinstance(seen, int) else view.serving.generation,
        exchanging=bool(told),
    )


def _seconds(written: object, now: float) -> float:
    try:
        return min(now, times.read(str(written)).timestamp())
    except ValueError:
        return now


def _failure(told: object) -> Failure | None:
    if not isinstance(told, Mapping) or not isinstance(told.get("generation"), int):
        return None
    return Failure(str(told.get("revision") or ""), told["generation"], str(told.get("message") or ""))


def _shaped(manifest: Manifest, revision: str, rollout: Rollout) -> Manifest:
    role = _role(manifest)
    if manifest["kind"] not in ENGINES or role not in ROLES:
        return manifest
    spec: dict[str, Any] = {**manifest["spec"], "replicas": rollout.counts[role]}
    if role == "router":
        template = spec["template"]
        marks = {**template["metadata"]["labels"], labels.TRAFFIC: _word(revision in rollout.traffic)}
        spec["template"] = {**template, "metadata": {**template["metadata"], "labels": marks}}
    return {**manifest, "spec": spec}


def adjusting(adjustment: Adjustment) -> dict[str, Any]:
    """The merge patch that carries an adjustment out."""
    spec: dict[str, Any] = {"replicas": adjustment.replicas}
    if adjustment.traffic is not None:
        spec["template"] = {"metadata": {"labels": {labels.TRAFFIC: _word(adjustment.traffic)}}}
    metadata: dict[str, Any] = {"uid": adjustment.child.uid}
    if adjustment.child.edited:
        metadata["labels"] = dict(adjustment.child.edited)
    return {"metadata": metadata, "spec": spec}


def _word(behind: bool) -> str:
    return labels.ON if behind else labels.OFF


def _role(manifest: Manifest) -> Any:
    return manifest["metadata"]["labels"].get(labels.ROLE)
