"""Where a rollout is, as the object's status tells it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..plan.rollout_types import Phase
from ..reasons import Reason

Body = Mapping[str, Any]
Outcome = Literal["complete", "failed", "suspended", "waiting"]
Remedy = Literal["undo", "spec", "operator"]
"""What can help: a former revision, nothing but another spec, or to look after the operator."""
IN_PLACE = (
    "Take a change in place back field by field: `kubectl apply` of the former file leaves alone what that file never "
    "had; set such a field to null by `kubectl patch`, or `kubectl replace -f FILE`"
)
"""How a change that made no revision is taken back."""
HEAD = ("REVISION", "TRAFFIC", "TRANSFER", "PREFILL", "DECODE", "ROUTER")


@dataclass(frozen=True)
class Standing:
    """Whether the rollout is over, what it waits for or why it ended, and a row of ``HEAD`` for each set."""

    outcome: Outcome
    message: str
    sets: tuple[tuple[str, ...], ...] = ()
    troubled: bool = False
    """Whether what it waits for may never come by itself, as with a pod that fails."""
    remedy: Remedy = "spec"

    @property
    def over(self) -> bool:
        """Whether waiting changes nothing."""
        return self.outcome != "waiting"


def standing(body: Body) -> Standing:
    """Return where the rollout to the present spec of an object is."""
    found = _standing(body)
    return replace(found, remedy="undo") if found.remedy == "spec" and _has_former(body) else found


def way_out(found: Standing, body: Body, program: str) -> str:
    """The line that says what can be done about a rollout that is not getting on."""
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    if found.remedy == "operator":
        doctor = "kvserving doctor --cluster" if program == "kvserving" else f"{program} doctor"
        return f"Way out: see whether the operator runs, and what it may not do: `{doctor}`"
    waits = "" if found.troubled or found.over else f"wait longer (`{program} rollout status {name} -n {namespace}`), "
    if found.remedy == "undo":
        return f"Way out: {waits}change the spec, or `{program} rollout undo {name} -n {namespace}`"
    if waits:
        return f"Way out: {waits}or change the spec"
    return f"Way out: change the spec; no former revision is there to undo to. {IN_PLACE}"


def _has_former(body: Body) -> bool:
    """Whether another revision than that of the present spec serves or served last, to which `undo` returns."""
    status = body.get("status") or {}
    told = status.get("revision")
    if status.get("updatingRevision"):
        return True
    if any(known.get("traffic") and known.get("revision") != told for known in _sets(status)):
        return True
    holds = {c.get("type") for c in status.get("conditions") or () if c.get("status") == "True"}
    # The revision is then that of the last spec that could be planned.
    return bool(told) and "ConfigValid" not in holds and "Available" in holds


def _sets(status: Body) -> Sequence[Body]:
    return (status.get("rollout") or {}).get("sets") or ()


def _standing(body: Body) -> Standing:
    status, generation = body.get("status") or {}, int(body["metadata"].get("generation") or 0)
    rollout = status.get("rollout") or {}
    sets = tuple(_row(known) for known in _sets(status))
    if int(status.get("observedGeneration") or 0) < generation:
        message = f"the operator has not looked at generation {generation} yet"
        return Standing("waiting", message, sets, troubled=True, remedy="operator")
    conditions = {str(c.get("type")): c for c in status.get("conditions") or ()}
    ready, stalled = conditions.get("Ready") or {}, conditions.get("Stalled") or {}
    if _says(ready, "False", Reason.INVALID_SPEC):
        return Standing("failed", f"the spec cannot be planned: {ready.get('message')}", sets)
    if _says(ready, "False", Reason.ROLLOUT_FAILED) or rollout.get("phase") == Phase.STOPPED:
        failed = rollout.get("failed") or {}
        return Standing("failed", str(failed.get("message") or ready.get("message") or "no reason is told"), sets)
    if (body.get("spec") or {}).get("suspend"):
        return Standing("suspended", "spec.suspend stops all engines and routers: set it to false to go on", sets)
    if ready.get("status") == "True" and not status.get("updatingRevision") and len(sets) <= 1:
        revision = str(status.get("revision") or "")
        return Standing("complete", f"revision {revision} serves; {ready.get('message')}", sets)
    if stalled.get("status") == "True":
        return Standing("waiting", str(stalled.get("message")), sets, troubled=True)
    told = str(rollout.get("message") or ready.get("message") or "the operator has told nothing yet")
    if rollout.get("phase") == Phase.PAUSED:
        told = f"paused: {told}"
    degraded = conditions.get("Degraded") or {}
    troubled = degraded.get("status") == "True"
    if troubled and (why := str(degraded.get("message") or "")) not in told:
        told = f"{told}; {why}"
    return Standing("waiting", told, sets, troubled)


def _says(condition: Body, status: str, reason: Reason) -> bool:
    return condition.get("status") == status and condition.get("reason") == reason


def _row(known: Body) -> tuple[str, ...]:
    counts = (str(known.get(role) or "-") for role in ("prefill", "decode", "router"))
    behind = "yes" if known.get("traffic") else "no"
    return str(known.get("revision"))[:8], behind, str(known.get("verification") or "-"), *counts
