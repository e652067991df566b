"""What the cluster's events say of an object's parts, as long as what they are about is not well again."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...control.pods import pod_state
from ..facts import Body, Live
from ..findings import Finding, warning

_GENERIC = {
    "FailedMount": "the message says which volume and why; `kubectl describe pod` has all of it",
    "FailedAttachVolume": "the message says why; `kubectl get volumeattachments` says where the volume is",
    "FailedCreate": "a quota, a policy or an admission webhook refuses the pod: the message says which",
    "FailedCreatePodSandBox": "the node's network or runtime is at fault",
    "Evicted": "the message says of what the node had too little: give the pod or the node more of it",
    "Preempted": "give the engines a priority class",
    "FailedPostStartHook": "the image lacks what the hook runs",
    "FailedPreStopHook": "the drain did not run: the connector is missing in the image, or the engine was gone",
    "ProvisioningFailed": "the message says what the storage class cannot do; engines need ReadWriteMany",
}
_BY_TEXT: dict[str, tuple[tuple[str, str], ...]] = {
    "FailedMount": (
        (r'secrets? "([^"]+)" not found', "create the Secret {0}: the finding about it has the command"),
        (
            r'configmaps? "([^"]+)" not found',
            "the ConfigMap {0} does not exist: create it, if it is one that you named",
        ),
        (r"non-existent (?:secret|config) key: (\S+)", "add the key {0} to the Secret or ConfigMap that is mounted"),
        (r'persistentvolumeclaims? "([^"]+)" not found', "create the claim {0}, or name another one in the object"),
        (
            r"driver name (\S+) not found in the list of registered CSI drivers",
            "the driver {0} does not run on the node: look at its DaemonSet",
        ),
        (r"hostPath type check failed: (\S+)", "{0} is not on the node as the object's template wants it"),
        (r"is not bound|unbound", "the claim waits for a volume: `kubectl describe pvc` says why"),
    ),
    "FailedAttachVolume": (
        (r"Multi-Attach", "the volume is attached elsewhere: engines on several nodes need ReadWriteMany"),
    ),
    "FailedCreate": ((r"exceeded quota: (\S+?),", "raise the ResourceQuota {0}, or lower the object's spec"),),
    "Evicted": (
        (
            r"ephemeral[- ]storage",
            "the node's disk was full: give it more room, or the model a claim (spec.model.cache)",
        ),
        (r"memory", "give the pod a memory limit that holds its tiers, or the node more room"),
    ),
    "ProvisioningFailed": (
        (r'storageclass[\w.]* "([^"]+)" not found', "make the storage class {0}, or name another in the object"),
    ),
}
"""Causes by what the event says, and their ways out with what the pattern found."""
_BEFORE_START = frozenset({"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"})


def findings(live: Live) -> Iterator[Finding]:
    """Findings about events of what is not well, each cause once for each part."""
    seen: set[tuple[str, str]] = set()
    for event in live.events:
        reason, about = str(event.get("reason")), event.get("involvedObject") or {}
        where = f"{about.get('kind', '')} {about.get('name', '')}".strip()
        if event.get("type") != "Warning" or reason not in _GENERIC or (reason, where) in seen or _over(live, event):
            continue
        seen.add((reason, where))
        times, message = int(event.get("count") or 1), str(event.get("message") or "")
        yield warning(
            f"event-{reason}",
            where,
            f"{message}{f' ({times} times)' if times > 1 else ''}",
            why=_COSTS.get(str(about.get("kind")), "its pods are not made"),
            fix=_way_out(reason, message),
        )


_COSTS = {
    "Pod": "the pod does not start, or has ended",
    "PersistentVolumeClaim": "pods that mount it stay Pending",
}


def _way_out(reason: str, message: str) -> str:
    for pattern, fix in _BY_TEXT.get(reason, ()):
        if told := re.search(pattern, message):
            return fix.format(*(group.strip(".,:;") for group in told.groups()))
    return _GENERIC[reason]


def _over(live: Live, event: Body) -> bool:
    """Whether what the event is about is well again; events outlive their cause by an hour."""
    about = event.get("involvedObject") or {}
    kind, name = about.get("kind"), about.get("name")
    if kind == "Pod":
        pod = next((body for body in live.pods if body["metadata"].get("name") == name), None)
        return pod is not None and (pod_state(pod).ready or (event.get("reason") in _BEFORE_START and _started(pod)))
    if kind == "PersistentVolumeClaim" and (claim := live.claims.get(str(name))) is not None:
        return (claim.get("status") or {}).get("phase") == "Bound"
    body = next((c for c in live.children if (c.get("kind"), c["metadata"].get("name")) == (kind, name)), None)
    if body is None:
        return False
    status: Body = body.get("status") or {}
    wanted = (body.get("spec") or {}).get("replicas")
    return status.get("phase") == "Bound" or (wanted is not None and (status.get("readyReplicas") or 0) >= wanted)


def _started(pod: Body) -> bool:
    """Whether one of its containers runs or has run, which needs every volume and a network."""
    status = pod.get("status") or {}
    every = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    states = [state for c in every for state in (c.get("state") or {}, c.get("lastState") or {})]
    return any("running" in state or "terminated" in state for state in states)
