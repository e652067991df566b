"""Pods as far as decisions need them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import times
from ..api.faults import printable
from ..plan import labels
from ..redaction import redact
from .owners import controller_of

NOT_PULLED = "ImagePullBackOff"
"""Why a container does not run whose image is not had, during an attempt as between two: the kubelet flips its word."""
_ATTEMPT = "ErrImagePull"
_FAILING = frozenset(
    (
        "CrashLoopBackOff",
        NOT_PULLED,
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    )
)
_OF_IMAGES = frozenset((NOT_PULLED, "InvalidImageName"))
# One attempt may fail by the network or a node; these say that several have, or that none can succeed.
_FOR_GOOD = frozenset((NOT_PULLED, "InvalidImageName", "CreateContainerConfigError"))
NEVER_RAN = ("StartError", "ContainerCannotRun")
"""Ends whose message is the container runtime's own: there is no log that could say why."""
LAST_WORDS = "KVServing: "
_LONGEST = 300
_WRAPPING = re.compile(
    r"rpc error: code = \w+ desc = |failed to (?:pull and unpack image|resolve reference|pull image|resolve image) "
    r'(?:"[^"]*"|\S+): |Error response from daemon: '
)
# The port that each attempt asks from.
_PORT = re.compile(r":\d+(?=->)")
_STARTS = 2


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod. ``failing`` is the reason for which a container does not run, such as ``CrashLoopBackOff``;
    ``unschedulable`` the scheduler's sentence. ``http`` is the port of that name, 0 when there is none."""

    name: str
    uid: str
    version: str
    role: str
    revision: str
    address: str
    http: int
    ready: bool
    deleting: bool
    failing: str
    failing_message: str
    unschedulable: str
    ended: bool = False
    """Whether it has stopped for good and holds nothing any more, such as after an eviction."""
    traffic: bool = False
    """Whether it is a router behind the Service."""
    owner: str = ""
    """Name of its controller: a ReplicaSet or StatefulSet. A pod whose labels were edited loses it."""
    restarts: int = 0
    """How often its containers were started again, in sum: each time another process took the pod's address."""
    leaves_by: float = 0.0
    """When the grace of its deletion is over, in Unix seconds; 0 where it is not being deleted."""
    waiting: str = ""
    """Why a container is not made yet, where it has not failed, such as ``ContainerCreating``."""
    claims: tuple[str, ...] = ()
    """Names of the claims that it mounts."""
    unpulled: str = ""
    """The container whose image is not had."""
    registry: str = ""
    """What the registry or the runtime answered to that, as far as the kubelet tells."""
    retries: int = 0
    """How often a container that is not ready was started again, of those that initialise the pod too."""
    told: bool = False
    """Whether our code said what its container lacks: it starts no better until that is there."""
    last_end: str = ""
    """How a container ended that is started again now, in words; empty where none is."""

    def without_version(self) -> PodState:
        """Return the pod without its resource version, for comparison."""
        return replace(self, version="")

    def after(self, known: PodState) -> PodState:
        """Return the pod with the registry's answer that its former state had: between two attempts some kubelets
        leave it out."""
        same = (self.unpulled, self.failing, self.failing_message) == (
            known.unpulled, known.failing, known.failing_message,
        )  # fmt: skip
        return replace(self, registry=known.registry) if self.unpulled and same and not self.registry else self

    @property
    def fails_for_good(self) -> bool:
        """Whether it fails, and another attempt is not likely to end otherwise."""
        often = max(self.restarts, self.retries) >= _STARTS
        return bool(self.failing) and (self.told or often or self.failing in _FOR_GOOD)

    @property
    def serving(self) -> bool:
        """Whether it takes requests: ready, with an address, and not being deleted."""
        return self.ready and bool(self.address) and not self.deleting


def pod_state(body: Mapping[str, Any]) -> PodState:
    """Return a pod trimmed from what the apiserver sent."""
    metadata, status = body["metadata"], body.get("status") or {}
    marks = metadata.get("labels") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    failing, message = _failing(status)
    unpulled, answer = _unpulled(status) if failing in _OF_IMAGES else ("", "")
    unready = [container for container in containers(status) if not container.get("ready")]
    return PodState(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        role=marks.get(labels.ROLE, ""),
        revision=marks.get(labels.REVISION, ""),
        address=status.get("podIP") or "",
        http=_http_port(body),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        deleting="deletionTimestamp" in metadata,
        failing=failing,
        failing_message=message,
        unschedulable=(
            (scheduled.get("message") or "")
            if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
            else ""
        ),
        ended=status.get("phase") in ("Succeeded", "Failed"),
        traffic=marks.get(labels.TRAFFIC) == labels.ON,
        owner=owner.name if (owner := controller_of(metadata)) is not None else "",
        restarts=sum(container.get("restartCount") or 0 for container in status.get("containerStatuses") or ()),
        leaves_by=_seconds(metadata.get("deletionTimestamp")),
        waiting="" if failing else _waiting(status),
        claims=_claims(body),
        unpulled=unpulled,
        registry=answer,
        retries=max((container.get("restartCount") or 0 for container in unready), default=0),
        told=any(last_words(ended(container)) for container in unready),
        last_end=_last_end(status),
    )


def containers(status: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The statuses of a pod's containers, those that initialise it first."""
    return (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))


def ended(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """How a container ended last, from its status: by an error now, else before it was started again; empty without
    an end. An end by success that it stays in, as of an init container, is none."""
    found: Mapping[str, Any] = (container.get("state") or {}).get("terminated") or {}
    if not found.get("exitCode"):
        found = (container.get("lastState") or {}).get("terminated") or {}
    return found


def last_words(ended: Mapping[str, Any]) -> str:
    """What our code in a container said of its end, as ``kvserving_connector.last_words`` writes it; else empty.

    Anything else that a container leaves there may be a piece of its log.
    """
    message = str(ended.get("message") or "")
    return printable(message.removeprefix(LAST_WORDS).strip())[:_LONGEST] if message.startswith(LAST_WORDS) else ""


def _failing(status: Mapping[str, Any]) -> tuple[str, str]:
    """Why a container does not run, and what is known of its last end.

    One that has ended twice fails until it is ready: between two attempts it looks as if it were starting. One of which
    our code said what it lacks fails from its first end on.
    """
    for container in containers(status):
        reason = _waits_for(container)
        last = ended(container)
        often = bool(last_words(last)) or (container.get("restartCount") or 0) >= _STARTS
        again = often and not container.get("ready") and last.get("exitCode")
        if reason in _FAILING or again:
            said = f"container {container.get('name', '?')}"
            if reason in _OF_IMAGES:
                return str(reason), f"{said}: image {container.get('image', '?')}"
            if words := last_words(last):
                said = f"{said}: {words}"
            elif last.get("reason") in NEVER_RAN and last.get("message"):
                said = f"{said}: {last['reason']}: {last['message']}"
            elif last.get("exitCode") is not None:
                said = f"{said}: exit code {last['exitCode']}"
            return (reason if reason in _FAILING else "CrashLoopBackOff"), said
    return "", ""


def _waits_for(container: Mapping[str, Any]) -> str:
    reason = str(((container.get("state") or {}).get("waiting") or {}).get("reason") or "")
    return NOT_PULLED if reason == _ATTEMPT else reason


def _unpulled(status: Mapping[str, Any]) -> tuple[str, str]:
    """The first container whose image is not had, and the answer without what only says who asked whom for what."""
    container = next(c for c in containers(status) if _waits_for(c) in _OF_IMAGES)
    said = str(container["state"]["waiting"].get("message") or "")
    if container["state"]["waiting"]["reason"] == NOT_PULLED:
        said = said.partition(f"{_ATTEMPT}: ")[2]
    return str(container.get("name", "?")), printable(redact(_PORT.sub("", _WRAPPING.sub("", said)).strip()))[:_LONGEST]


def _waiting(status: Mapping[str, Any]) -> str:
    for container in status.get("containerStatuses") or ():
        if reason := ((container.get("state") or {}).get("waiting") or {}).get("reason"):
            return str(reason)
    return ""


def _last_end(status: Mapping[str, Any]) -> str:
    for container in status.get("containerStatuses") or ():
        last = ended(container)
        if not container.get("ready") and last.get("exitCode") is not None:
            return (
                f"container {container.get('name', '?')} ended with exit code {last['exitCode']} and is started again"
            )
    return ""


def _claims(body: Mapping[str, Any]) -> tuple[str, ...]:
    mounted = (volume.get("persistentVolumeClaim") for volume in (body.get("spec") or {}).get("volumes") or ())
    return tuple(str(claim.get("claimName") or "") for claim in mounted if claim)


def _seconds(written: str | None) -> float:
    return times.read(written).timestamp() if written else 0.0


def _http_port(body: Mapping[str, Any]) -> int:
    for container in (body.get("spec") or {}).get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == "http":
                return int(port.get("containerPort") or 0)
    return 0
