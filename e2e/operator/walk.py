"""Steps of a generated walk: changes of the spec, faults, foreign hands, failing pods; each is a value that prints.

A walk is a list of bouts, a bout a list of steps. Steps only disturb; after each bout the faults stop, and the
children must become what the plan says. To see a walk again, paste the printed bouts into ``World.walk``.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.faults import (
    Call,
    Cut,
    CutWatch,
    Delay,
    DelayEvents,
    DropEvent,
    Duplicate,
    DuplicateEvent,
    EventFault,
    EventMatch,
    Match,
    RequestFault,
    Stale,
    StallWatch,
    Status,
    WatchGone,
)
from e2e.controlplane.pod_script import CREATING, READY, RUNNING
from e2e.operator.objects import children, condition, differences, eventually, path_of, serving
from e2e.operator.running import Operator

from kvserving_operator.control.exit_codes import ExitCode
from kvserving_operator.control.permissions import CHILDREN

_READS = frozenset({"get", "list"})
_LOSABLE = frozenset({"get", "list", "create", "patch", "delete"})
_SETTLING = 150.0

FAULTS: Mapping[str, tuple[Callable[..., Match | EventMatch], RequestFault | EventFault, float]] = {
    "error": (lambda **k: Match(verbs=_LOSABLE, **k), Status(500), 0.3),
    "error after the write": (Match.writes, Status(500, when="after"), 0.3),
    "too many requests": (Match.writes, Status(429, retry_after=1), 0.2),
    "conflict": (lambda **k: Match(verbs=frozenset({"create", "patch"}), **k), Status(409), 0.3),
    "list expired": (lambda **k: Match(verbs=frozenset({"list"}), **k), Status(410), 0.5),
    "cut": (lambda **k: Match(verbs=_LOSABLE, **k), Cut(), 0.2),
    "cut after the write": (Match.writes, Cut("after"), 0.3),
    "slow": (lambda **k: Match(verbs=_LOSABLE, **k), Delay(0.3), 0.3),
    "slow answer": (Match.writes, Delay(0.3, "after"), 0.3),
    "sent twice": (Match.writes, Duplicate(), 0.5),
    # The proxy answers a stale read of one object from a list, and the operator may not list Secrets.
    "stale": (
        lambda **k: Match(verbs=_READS, where=lambda info, _: info.resource != "secrets", **k),
        Stale(seconds=2),
        0.7,
    ),
    "stale watch": (lambda **k: Match(verbs=frozenset({"list", "watch"}), **k), Stale(seconds=2), 0.7),
    "event lost": (EventMatch, DropEvent(), 0.5),
    "event twice": (EventMatch, DuplicateEvent(), 0.5),
    "event late": (EventMatch, DelayEvents(0.5), 0.5),
    "watch stalls": (EventMatch, StallWatch(), 0.1),
    "watch cut": (EventMatch, CutWatch(), 0.2),
    "watch expired": (EventMatch, WatchGone(), 0.2),
}
"""Name, what is hit, what happens, and the chance of each request or event to be hit."""


@dataclass
class World:
    """Where a walk happens: one object, one operator behind a proxy, one kubelet."""

    plane: ControlPlane
    namespace: str
    proxy: FaultProxy
    kubelet: FakeKubelet
    operator: Operator
    killed: bool = False
    faulty: bool = False
    taken: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> str:
        """Path of the object."""
        return path_of(self.namespace)

    def walk(self, bouts: Sequence[Sequence[Step]]) -> None:
        """Take every step; after each bout, wait until the children are as planned."""
        self.plane.api.create(serving(self.namespace))
        for bout in bouts:
            for step in bout:
                print(f"{time.monotonic() - self.started:7.2f} {step!r}")
                step.take(self)
                self.taken += 1
                self.revive()
            self.calm()
        self.plane.api.delete(self.path)
        eventually(lambda: set(children(self.plane, self.namespace)), lambda left: not left, what="nothing is left")

    def kill(self, *_: object) -> None:
        """Kill the operator."""
        self.killed = True
        self.operator.kill()

    def revive(self, *, wait: bool = False) -> None:
        """Restart an operator that was killed, or that could not start because of faults; nothing else may end it."""
        assert self.operator.process is not None
        code = self.operator.process.poll()
        if code is not None:
            faulty = self.faulty and code == ExitCode.CLUSTER
            assert self.killed or faulty, f"the operator ended by itself with {code}\n{self.operator.tail()}"
            self.killed = False
            self.operator.start(wait=wait)
        elif wait:
            self.operator.wait_ready()

    def calm(self) -> None:
        """End all faults, make every pod ready, and compare with the plan once the operator says that it is done."""
        print(f"{time.monotonic() - self.started:7.2f} calm")
        self.proxy.clear()
        found = self.plane.api.get(self.path)
        if found["spec"].get("engine", {}).get("version") == INVALID:
            self.plane.api.merge(self.path, {"spec": {"engine": {"version": "0.33.0"}}})
        for name in self.pods():
            with contextlib.suppress(LookupError):
                self.kubelet.set_ready(self.namespace, name, True)
        eventually(self._unsettled, lambda left: not left, what="children as planned", timeout=_SETTLING)
        self.proxy.wait_quiet(0.3)
        assert differences(self.plane, self.namespace) == []
        self.faulty = False
        print(f"{time.monotonic() - self.started:7.2f} as planned")

    def pods(self) -> list[str]:
        """Return the names of pods that an object may have."""
        return sorted(
            item["metadata"]["name"]
            for item in self.plane.api.items(f"/api/v1/namespaces/{self.namespace}/pods")
            if "deletionTimestamp" not in item["metadata"]
        )

    def _unsettled(self) -> list[str]:
        # A request that was held when the faults ended may still kill.
        self.revive()
        found = self.plane.api.get(self.path)
        generation, suspended = found["metadata"]["generation"], found["spec"].get("suspend", False)
        left = []
        for kind, status in (("Ready", "False" if suspended else "True"), ("Progressing", "False")):
            seen = condition(found, kind)
            if seen.get("status") != status or seen.get("observedGeneration") != generation:
                left.append(f"{kind} is {seen}, generation {generation}")
        return left or differences(self.plane, self.namespace)


INVALID = "0.19.0"
"""An engine that the apiserver accepts and the plan refuses."""


@dataclass(frozen=True)
class Step(ABC):
    """One disturbance."""

    @abstractmethod
    def take(self, world: World) -> None:
        """Do it."""


@dataclass(frozen=True)
class Change(Step):
    """A merge patch of the spec."""

    spec: Json

    def take(self, world: World) -> None:
        """Patch."""
        world.plane.api.merge(world.path, {"spec": self.spec})


@dataclass(frozen=True)
class Rest(Step):
    """Time in which the operator goes on."""

    seconds: float

    def take(self, world: World) -> None:
        """Let it pass."""
        time.sleep(self.seconds)


@dataclass(frozen=True)
class Fault(Step):
    """A fault of ``FAULTS`` from now to the end of the bout."""

    name: str
    seed: int

    def take(self, world: World) -> None:
        """Add the rule."""
        world.faulty = True
        match, fault, probability = FAULTS[self.name]
        world.proxy.add(match(probability=probability, seed=self.seed), fault)


@dataclass(frozen=True)
class Crash(Step):
    """The operator dies at a coming write, or at once with 0."""

    write: int
    after: bool

    def take(self, world: World) -> None:
        """Kill it, or add the rule."""
        if self.write == 0:
            world.kill()
        else:
            when: Any = "after" if self.after else "before"
            world.proxy.add(Match.writes(nth=self.write), Call(world.kill, when=when, then="cut"))


@dataclass(frozen=True)
class Meddle(Step):
    """Someone else lays hands on a child."""

    which: int
    how: str

    def take(self, world: World) -> None:
        """Delete it, or change it as another manager."""
        found = children(world.plane, world.namespace)
        names = sorted(identity for identity in found if identity[0] != "Secret")
        if not names:
            return
        kind, name = names[self.which % len(names)]
        resource = next(resource for resource in CHILDREN if resource.kind == kind)
        path = world.plane.api.path_of({**found[kind, name], "kind": kind, "apiVersion": resource.api_version})
        workload = "template" in found[kind, name].get("spec", {})
        patches: Mapping[str, Json] = {
            "label": {"metadata": {"labels": {"app.kubernetes.io/name": "theirs", "team": "blue"}}},
            "unlabel": {"metadata": {"labels": {"kvserving.dev/name": None}}},
            "digest": {"metadata": {"annotations": {"kvserving.dev/applied": "theirs"}}},
            "replicas": {"spec": {"replicas": 5}} if workload else {},
        }
        # It may be gone by now.
        with contextlib.suppress(ApiError):
            if self.how == "delete":
                world.plane.api.delete(path)
            elif patches[self.how]:
                world.plane.api.merge(path, patches[self.how], fieldManager="someone")


@dataclass(frozen=True)
class Disturb(Step):
    """A pod fails: it loses readiness, is restarted, evicted, or starts again from the beginning."""

    which: int
    how: str

    def take(self, world: World) -> None:
        """Tell the kubelet."""
        found = world.pods()
        if not found:
            return
        name = found[self.which % len(found)]
        # One that waits for a node does not run yet.
        with contextlib.suppress(LookupError):
            match self.how:
                case "crash":
                    world.kubelet.crash(world.namespace, name)
                case "evict":
                    world.kubelet.evict(world.namespace, name)
                case _:
                    state = {"ready": READY, "unready": RUNNING, "creating": CREATING}[self.how]
                    world.kubelet.set_state(world.namespace, name, state)


@dataclass(frozen=True)
class Replace(Step):
    """The object is deleted and created again with the same spec."""

    def take(self, world: World) -> None:
        """Delete and create."""
        spec = world.plane.api.get(world.path)["spec"]
        world.plane.api.delete(world.path)
        world.plane.api.create({**serving(world.namespace), "spec": spec})
