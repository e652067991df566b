"""What happens to a pod on a node that does not exist: states, scripts of states, and the runtime that plays them.

A script is told by what a pod does, not by what a test wants to see of it:

    ready(after=0.2)                   starts, and is ready 0.2 s later
    crash_loop(after=0.1, exit_code=1) starts, ends, is restarted, again and again
    image_pull_error()                 stays Pending, ErrImagePull
    never_ready()                      runs and fails its readiness probe
    unschedulable("0/1 nodes ...")     is never given a node
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, Protocol

Json = dict[str, Any]
Phase = Literal["Pending", "Running", "Succeeded", "Failed"]


@dataclass(frozen=True)
class ContainerState:
    """One container: running unless it waits for a reason or has ended with an exit code."""

    ready: bool = False
    restarts: int = 0
    waiting: str | None = None
    exit_code: int | None = None
    last_exit_code: int | None = None
    message: str = ""


@dataclass(frozen=True)
class PodState:
    """The state of a pod that is reported as its status.

    ``container`` holds for every container that ``containers`` does not name; the pod is ready when all are and
    ``ready_gate`` is true. ``reason`` is the pod's own, such as ``Evicted``.
    """

    phase: Phase
    container: ContainerState = ContainerState()
    containers: Mapping[str, ContainerState] = field(default_factory=dict)
    reason: str = ""
    message: str = ""

    def of(self, name: str) -> ContainerState:
        """The state of container ``name``."""
        return self.containers.get(name, self.container)


CREATING = PodState("Pending", ContainerState(waiting="ContainerCreating"))
RUNNING = PodState("Running")
READY = PodState("Running", ContainerState(ready=True))
SUCCEEDED = PodState("Succeeded", ContainerState(exit_code=0))
EVICTED = PodState(
    "Failed", ContainerState(exit_code=137), reason="Evicted", message="The node was low on resource: memory."
)


@dataclass(frozen=True)
class Step:
    """Report ``state``, ``after`` seconds after the step before."""

    after: float
    state: PodState


@dataclass(frozen=True)
class Script:
    """The life of a pod. ``steps`` run once; then ``forever`` repeats with the restart count rising by one each time.

    ``unschedulable``: the message with which it is refused a node, until the script of its pod is changed.
    ``stop_after``: seconds that it takes to end once deleted; longer than its grace means that it is killed then.
    """

    steps: tuple[Step, ...] = ()
    forever: tuple[Step, ...] = ()
    schedule_after: float = 0.0
    unschedulable: str | None = None
    stop_after: float = 0.0


def ready(after: float = 0.05, *, start_after: float = 0.0, stop_after: float = 0.0) -> Script:
    """Containers start ``start_after`` seconds after scheduling; the pod is ready ``after`` seconds later."""
    return Script((Step(0, CREATING), Step(start_after, RUNNING), Step(after, READY)), stop_after=stop_after)


def never_ready(*, start_after: float = 0.0) -> Script:
    """It runs and does not become ready."""
    return Script((Step(0, CREATING), Step(start_after, RUNNING)))


def crash_loop(after: float = 0.05, *, exit_code: int = 1, back_off: float = 0.1) -> Script:
    """The containers end ``after`` seconds after each start and are started again after ``back_off`` seconds."""
    down = ContainerState(
        waiting="CrashLoopBackOff", last_exit_code=exit_code, message="back-off restarting failed container"
    )
    again = (
        Step(after, PodState("Running", down)),
        Step(back_off, PodState("Running", ContainerState(last_exit_code=exit_code))),
    )
    return Script((Step(0, CREATING), Step(0, RUNNING)), forever=again)


def image_pull_error(reason: str = "ErrImagePull") -> Script:
    """The image cannot be had: Pending for ever."""
    state = PodState("Pending", ContainerState(waiting=reason, message="image not found"))
    return Script((Step(0, CREATING), Step(0, state)))


def unschedulable(message: str = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.") -> Script:
    """No node has room: Pending and PodScheduled=False/Unschedulable."""
    return Script(unschedulable=message)


def completes(after: float = 0.05) -> Script:
    """It runs and ends with 0."""
    return Script((Step(0, CREATING), Step(0, RUNNING), Step(after, SUCCEEDED)))


Report = Callable[[PodState], Awaitable[None]]


class Runtime(Protocol):
    """Who runs the containers: a script, or processes. The kubelet calls it; all pods share one runtime."""

    async def run(self, pod: Json, address: str, report: Report) -> None:
        """Run ``pod`` with ``address`` as its IP, reporting each change of state.

        It returns when the pod has ended for good; the last report then stands. It is cancelled when the pod is to
        be gone (after ``stop``), or to start again.
        """

    async def stop(self, pod: Json) -> None:
        """End the pod's containers; cancelled when the grace period is over."""

    async def close(self) -> None:
        """End what is left when the kubelet ends; every ``run`` has been cancelled and has returned."""


class ScriptedRuntime:
    """Plays scripts. ``choose`` says which, given the pod."""

    def __init__(self, choose: Callable[[Json], Script]) -> None:
        self._choose = choose

    async def run(self, pod: Json, address: str, report: Report) -> None:
        """See ``Runtime``."""
        script = self._choose(pod)
        for step in script.steps:
            await asyncio.sleep(step.after)
            await report(step.state)
        restarts = 0
        while script.forever:
            restarts += 1
            for step in script.forever:
                await asyncio.sleep(step.after)
                await report(replace(step.state, container=replace(step.state.container, restarts=restarts)))

    async def stop(self, pod: Json) -> None:
        """See ``Runtime``."""
        await asyncio.sleep(self._choose(pod).stop_after)

    async def close(self) -> None:
        """See ``Runtime``."""


def status_of(pod: Json, state: PodState, *, address: str, before: Json) -> Json:
    """Return the pod status that says ``state``; conditions keep their transition time while they do not change."""
    containers = [_container(c, state.of(c["name"])) for c in pod["spec"]["containers"]]
    started = state.phase != "Pending"
    init = [
        _container(
            c,
            ContainerState(
                ready=started, exit_code=0 if started else None, waiting=None if started else "PodInitializing"
            ),
        )
        for c in pod["spec"].get("initContainers", [])
    ]
    is_ready = state.phase == "Running" and all(c["ready"] for c in containers)
    why = "" if is_ready else ("PodCompleted" if state.phase == "Succeeded" else "ContainersNotReady")
    status: Json = {
        "phase": state.phase,
        "reason": state.reason or None,
        "message": state.message or None,
        "hostIP": "127.0.0.1",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": before.get("startTime") or now(),
        "containerStatuses": containers,
        "conditions": conditions(
            before,
            ("PodScheduled", True, "", ""),
            ("Initialized", started, "" if started else "ContainersNotInitialized", ""),
            ("ContainersReady", is_ready, why, ""),
            ("Ready", is_ready, why, ""),
        ),
    }
    if init:
        status["initContainerStatuses"] = init
    return status


def conditions(before: Json, *wanted: tuple[str, bool, str, str]) -> list[Json]:
    """Return conditions of (type, status, reason, message), with the time of the last change of each status."""
    old = {c["type"]: c for c in before.get("conditions", [])}
    made = []
    for kind, true, reason, message in wanted:
        value = "True" if true else "False"
        same = old.get(kind, {}).get("status") == value
        condition = {
            "type": kind,
            "status": value,
            "lastTransitionTime": old[kind]["lastTransitionTime"] if same else now(),
        }
        made.append(condition | ({"reason": reason} if reason else {}) | ({"message": message} if message else {}))
    return made


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _container(spec: Json, state: ContainerState) -> Json:
    ended = {
        "exitCode": state.exit_code,
        "reason": "Completed" if state.exit_code == 0 else "Error",
        "finishedAt": now(),
    }
    if state.waiting is not None:
        current: Json = {"waiting": {"reason": state.waiting, "message": state.message}}
    elif state.exit_code is not None:
        current = {"terminated": ended}
    else:
        current = {"running": {"startedAt": now()}}
    last: Json = {}
    if state.last_exit_code is not None:
        last = {"terminated": {"exitCode": state.last_exit_code, "reason": "Error", "finishedAt": now()}}
    digest = sha256(spec.get("image", "").encode()).hexdigest()
    return {
        "name": spec["name"],
        "image": spec.get("image", ""),
        "imageID": ""
        if state.waiting == "ContainerCreating"
        else f"{spec.get('image', '').split('@')[0]}@sha256:{digest}",
        "ready": state.ready,
        "started": "running" in current,
        "restartCount": state.restarts,
        "state": current,
        "lastState": last,
    }


def key_of(pod: Json) -> str:
    """Return ``namespace/name`` of a pod."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
