"""Where a rollout is, as the object's status tells it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..plan.rollout_types import Phase
from ..reasons import Reason

Body = Mapping[str, Any]
Outcome = Literal["complete", "failed", "suspended", "waiting"]
HEAD = ("REVISION", "TRAFFIC", "TRANSFER", "PREFILL", "DECODE", "ROUTER")


@dataclass(frozen=True)
class Standing:
    """Whether the rollout is over, what it waits for or why it ended, and a row of ``HEAD`` for each set."""

    outcome: Outcome
    message: str
    sets: tuple[tuple[str, ...], ...] = ()
    troubled: bool = False
    """Whether what it waits for may never come by itself, as with a pod that fails."""

    @property
    def over(self) -> bool:
        """Whether waiting changes nothing."""
        return self.outcome != "waiting"


def standing(body: Body) -> Standing:
    """Return where the rollout to the present spec of an object is."""
    status, generation = body.get("status") or {}, int(body["metadata"].get("generation") or 0)
    rollout = status.get("rollout") or {}
    sets = tuple(_row(known) for known in rollout.get("sets") or ())
    if int(status.get("observedGeneration") or 0) < generation:
        return Standing("waiting", f"the operator has not looked at generation {generation} yet", sets)
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
