"""Events on the user's object, each kind declared here once.

They tell of transitions, of conditions and of rollouts, and of what the operator puts right by itself: a Secret, an
edit of a child, an engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal

from .. import times
from ..api.v1alpha1 import API_VERSION, KIND
from ..reasons import Reason
from .failures import ApiFailure
from .kube import Kube
from .observe import Serving
from .permissions import EVENTS

log = logging.getLogger(__name__)

_LONGEST = 1000
"""Characters of a message, of which the API takes no more than 1,024."""


class EventKind(Enum):
    """Every event: (reason, type, when it is sent)."""

    READY = ("Ready", "Normal", "Every role is ready and the transfer is verified.")
    NOT_READY = ("NotReady", "Warning", "The object was ready and is no longer; the message names the condition.")
    INVALID_SPEC = ("InvalidSpec", "Warning", "The spec cannot be planned; what runs is left as it is.")
    TRANSFER_VERIFIED = ("TransferVerified", "Normal", "A probe proved that KV moves from prefill to decode.")
    TRANSFER_FAILED = ("TransferNotVerified", "Warning", "A probe or the engines' counters show that KV does not move.")
    DEGRADED = ("Degraded", "Warning", "Something needs attention; the message says what.")
    RECOVERED = (
        "Recovered",
        "Normal",
        "The object, which was ready before something needed attention, is ready again and nothing does any more.",
    )
    AVAILABLE = ("Available", "Normal", "Requests can be served.")
    UNAVAILABLE = ("Unavailable", "Warning", "Requests can no longer be served.")
    ROLLING_OUT = (
        "RollingOut",
        "Normal",
        "The object was ready; a change of its spec or of its number of engines is on its way.",
    )
    SUSPENDED = ("Suspended", "Normal", "The object was ready; `spec.suspend` stops its pods.")
    ROLLOUT_STARTED = ("RolloutStarted", "Normal", "A new revision comes up.")
    ROLLOUT_FINISHED = ("RolloutFinished", "Normal", "The new revision serves; the former one leaves.")
    SECRET_REMADE = (
        "SecretRemade",
        "Warning",
        "A Secret that the operator makes was gone and is made anew; pods read it again within about two minutes.",
    )
    EDIT_PUT_BACK = (
        "EditPutBack",
        "Warning",
        "Someone changed what the operator says of a child, and it is set again; the message names child and fields.",
    )
    ENGINE_REPLACED = ("EngineReplaced", "Warning", "An engine hangs or cannot transfer; its pod is deleted.")

    @property
    def reason(self) -> str:
        """Reason of the event."""
        return self.value[0]

    @property
    def type(self) -> str:
        """``Normal`` or ``Warning``."""
        return self.value[1]

    @property
    def meaning(self) -> str:
        """When the event is sent."""
        return self.value[2]


Change = Literal["True", "False"]

# On which change of which condition an event is sent; ``None`` as former status means: it was not there.
_TRANSITIONS: Mapping[tuple[str, Change], EventKind] = {
    ("Ready", "True"): EventKind.READY,
    ("Ready", "False"): EventKind.NOT_READY,
    ("ConfigValid", "False"): EventKind.INVALID_SPEC,
    ("TransferVerified", "True"): EventKind.TRANSFER_VERIFIED,
    ("TransferVerified", "False"): EventKind.TRANSFER_FAILED,
    ("Degraded", "True"): EventKind.DEGRADED,
    ("Available", "True"): EventKind.AVAILABLE,
    ("Available", "False"): EventKind.UNAVAILABLE,
}
# These tell of a loss, which needs something to lose: not on a new object.
_NEED_OPPOSITE = frozenset((EventKind.NOT_READY, EventKind.UNAVAILABLE))
# What somebody asked for is no warning.
_ASKED_FOR: Mapping[tuple[EventKind, str], EventKind | None] = {
    (EventKind.NOT_READY, Reason.ROLLING_OUT.value): EventKind.ROLLING_OUT,
    (EventKind.NOT_READY, Reason.SUSPENDED.value): EventKind.SUSPENDED,
    (EventKind.UNAVAILABLE, Reason.SUSPENDED.value): None,
}
# Waited for by whoever changed the spec or asked for more engines.
_UNDER_WAY = frozenset(
    reason.value for reason in (Reason.STARTING, Reason.LOADING_MODEL, Reason.VERIFYING, Reason.ROLLING_OUT)
)
_REASON_MATTERS = frozenset((EventKind.INVALID_SPEC, EventKind.TRANSFER_FAILED, EventKind.DEGRADED))


@dataclass(frozen=True)
class Event:
    """One event to send."""

    kind: EventKind
    message: str


def transitions(last: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[Event, ...]:
    """Return the events for the way from status ``last`` to status ``document``; none where nothing changed."""
    before = _by_type(last.get("conditions") or ())
    asked = _asked(last) != _asked(document)
    found = []
    for name, condition in _by_type(document.get("conditions") or ()).items():
        kind = _TRANSITIONS.get((name, condition["status"]))
        if kind is None:
            continue
        was = before.get(name, {})
        moved = was.get("status") != condition["status"]
        if kind in _NEED_OPPOSITE and was.get("status") not in _opposite(condition["status"]):
            continue
        sent = _ASKED_FOR.get((kind, condition["reason"]), kind)
        if kind is EventKind.NOT_READY and asked and condition["reason"] in _UNDER_WAY:
            sent = EventKind.ROLLING_OUT
        if sent is not None and (moved or (kind in _REASON_MATTERS and was.get("reason") != condition["reason"])):
            found.append(Event(sent, f"{condition['reason']}: {condition['message']}"))
    return (*found, *_of_recovery(before, _by_type(document.get("conditions") or ())), *_of_rollout(last, document))


def _of_recovery(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> Iterator[Event]:
    """The end of a fault: not before the object is ready, and not of one that had never been.

    A fault may go for a moment, or for another one, while pods are tried again: that is no recovery.
    """
    ready, degraded = after.get("Ready", {}), after.get("Degraded", {})
    if ready.get("status") != "True" or degraded.get("status") != "False":
        return
    was_ready, was_degraded = before.get("Ready", {}), before.get("Degraded", {})
    if was_ready.get("status") == "True":
        over = was_degraded.get("status") == "True"
    else:
        since, ended = _since(was_ready), _since(was_degraded)
        # Every condition of a new object is of one moment; Ready that is younger than another one has changed.
        known = since > min(map(_since, before.values()), default="")
        over = known and (was_degraded.get("status") == "True" or ended >= since)
    if over:
        yield Event(EventKind.RECOVERED, f"{ready['reason']}: {ready['message']}; {degraded['message']}")


def _since(condition: Mapping[str, Any]) -> str:
    return str(condition.get("lastTransitionTime") or "")


def _asked(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is asked for, as a status tells it: the spec's generation, and engines by role."""
    roles = status.get("roles") or {}
    return status.get("observedGeneration"), {role: told.get("replicas") for role, told in roles.items()}


def _of_rollout(last: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Event]:
    now, comes = document.get("revision"), document.get("updatingRevision")
    serves = _by_type(document.get("conditions") or ()).get("Available", {}).get("status") == "True"
    if comes and comes != last.get("updatingRevision"):
        meanwhile = f"while {now} serves" if serves else "while none serves"
        yield Event(EventKind.ROLLOUT_STARTED, f"revision {comes} comes up {meanwhile}")
    if not comes and last.get("updatingRevision") and now == last["updatingRevision"]:
        yield Event(EventKind.ROLLOUT_FINISHED, f"revision {now} {'serves' if serves else 'is alone and not ready'}")


class Recorder:
    """Sends events. One that cannot be sent is logged and dropped: events are no state."""

    def __init__(self, kube: Kube, instance: str, counted: Callable[[str], None]) -> None:
        self._kube = kube
        self._instance = instance
        self._counted = counted

    async def send(self, serving: Serving, events: Iterable[Event]) -> None:
        """Create ``events`` on ``serving``. Raises ``MayNotWrite`` alone."""
        for event in events:
            try:
                await self._kube.create(EVENTS, self._body(serving, event))
                self._counted(event.kind.reason)
            except ApiFailure as failure:
                log.warning("event %s was not sent: %s", event.kind.reason, failure)

    def _body(self, serving: Serving, event: Event) -> dict[str, Any]:
        now = times.stamp(datetime.now(UTC))
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{serving.key.name}.", "namespace": serving.key.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": serving.key.name,
                "namespace": serving.key.namespace,
                "uid": serving.uid,
                "resourceVersion": serving.version,
            },
            "reason": event.kind.reason,
            "message": event.message[:_LONGEST],
            "type": event.kind.type,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": "kvserving-operator"},
            "reportingComponent": "kvserving.dev/operator",
            "reportingInstance": self._instance,
        }


def _by_type(conditions: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {str(condition.get("type")): condition for condition in conditions}


def _opposite(status: str) -> tuple[str, ...]:
    return ("False",) if status == "True" else ("True",)
