"""Why a workload is not ready, from its pods and its own conditions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..reasons import Reason
from . import asks
from .claims import Claims, lacking
from .observe import Child
from .pods import PodState

_NO_CLAIMS = Claims()


def why(
    child: Child,
    pods: Iterable[PodState],
    *,
    claims: Claims = _NO_CLAIMS,
    engines: bool = True,
    surge: bool = False,
) -> tuple[Reason, str]:
    """Return why a workload is not ready, the most specific cause first.

    ``claims`` are those of the object, with its spec. ``engines``: whether there are any that a router could send
    requests to. ``surge``: whether pods of another revision stay meanwhile.
    """
    assert child.workload is not None
    ours = [pod for pod in pods if pod.revision == child.revision and not pod.ready]
    for pod in ours:
        if pod.failing:
            return Reason.POD_FAILING, failure_of(pod, child.role)
    for pod in ours:
        if (claim := lacking(pod.name, pod.unschedulable, pod.claims, claims)) is not None:
            return claim
        if pod.unschedulable:
            hint = _NO_DEVICE_ANYWHERE if _NO_DEVICE.search(pod.unschedulable) else ""
            wants = asks.room(child.role, pod.unschedulable, claims.spec, surge=surge)
            return Reason.INSUFFICIENT_CAPACITY, f"pod {pod.name}: {pod.unschedulable}{hint}; {wants}"
    failure = child.workload.condition("ReplicaFailure")
    if failure is not None and failure[0] == "True":
        if "exceeded quota" in failure[2]:
            wants = asks.room(child.role, failure[2], claims.spec, surge=surge, otherwise="raise the quota")
            return Reason.QUOTA_EXCEEDED, f"{_tail(failure[2])}; {wants}"
        return Reason.POD_FAILING, f"pods cannot be created: {failure[1]}: {_POD.sub('pod', failure[2])}"
    progress = child.workload.condition("Progressing")
    if progress is not None and progress[0] == "False" and progress[1] == "ProgressDeadlineExceeded":
        return Reason.ROLLOUT_FAILED, "no progress within the deadline (spec.rollout.progressDeadline)"
    late = next((pod for pod in ours if pod.last_end), ours[0] if ours else None)
    if child.role == "router":
        silent = "it does not answer" if engines else "it waits for engines, of which none takes requests"
        return Reason.STARTING, f"pod {late.name}: {late.last_end or _unmade(late) or silent}" if late else ""
    if late is None:
        return Reason.LOADING_MODEL, "engines load the model"
    if not late.last_end and (unmade := _unmade(late)):
        return Reason.LOADING_MODEL, f"pod {late.name}: {unmade}"
    # A process that was ready and is stopped looks the same.
    return Reason.LOADING_MODEL, f"pod {late.name}: {late.last_end or 'the engine loads the model, or does not answer'}"


def failure_of(pod: PodState, role: str) -> str:
    """What a pod of ``role`` fails of, and of an image that is not had also which field names it."""
    if not pod.unpulled:
        return f"pod {pod.name}: {pod.failing}{f' ({pod.failing_message})' if pod.failing_message else ''}"
    answer = f": {pod.registry}" if pod.registry else ""
    return f"pod {pod.name}: {pod.failing} ({pod.failing_message}{answer}); {asks.image(role, pod.unpulled)}"


def _unmade(pod: PodState) -> str:
    """What a pod waits for whose containers have not begun; empty where they have."""
    if pod.waiting == "PodInitializing":
        return "its init containers have not ended"
    if pod.waiting:
        return f"its container is not made yet ({pod.waiting}): the image is pulled or a volume mounted"
    return ""


# Each attempt has another name.
_POD = re.compile(r'^pods "[^"]*"')
_NO_DEVICE = re.compile(r"^0/(\d+) nodes are available: \1 Insufficient nvidia\.com/gpu")
_NO_DEVICE_ANYWHERE = (
    " (if no node ever had one: install the device plugin of the GPUs, or, without GPUs, set spec.engine.device: cpu)"
)


def _tail(message: str) -> str:
    # 'pods "x-1" is forbidden: exceeded quota: ...': the pod's name changes with every attempt.
    return message[message.index("exceeded quota") :]
