"""The next step from one revisioned set to another. Pure: an observation in, one step out, nothing remembered.

A set is prefill, decode and router of one revision. The next set comes up within the surge, is
verified, and then shares the traffic; the last one goes down as far as the budget allows, leaves the
traffic, drains, and goes. The changes of one step may be applied in any order, all or some of them,
and the next step be planned from what is there then.
"""

from __future__ import annotations

from dataclasses import replace

from ..api.v1alpha1 import RoleName
from ..reasons import Reason
from . import rollout_moves as moves
from .rollout_budget import Board, board
from .rollout_moves import NONE
from .rollout_types import (
    ENGINES,
    ROLES,
    Change,
    Decision,
    Drain,
    Fail,
    Insufficient,
    Observation,
    Phase,
    Settings,
    Step,
    Switch,
    Verification,
    Wait,
    Wanted,
)

__all__ = ["next_step"]


def next_step(observed: Observation, wanted: Wanted, settings: Settings) -> Step:
    """The next step towards ``wanted``; raises nothing, whatever was observed.

    No change lowers the pods of a role that serve below what is wanted less ``max_unavailable``, or at all
    where they are fewer already, but where the numbers allow that nothing serves (``Wanted.off``,
    ``Recreate``, or no way within the budget that has one pair left). No change raises the pods of a role
    that exist above what is wanted and ``max_surge``; where one set is alone, pods that drain are not counted.
    """
    goal = wanted.revision
    at = board(observed, wanted, settings, goal)
    if not moves.exchanging(at):
        return _forward(at)
    failed = at.goal_set.verification is Verification.FAILED
    if failed or (observed.failed == goal and goal not in at.traffic):
        return _stopped(at, observed, at.goal_set.failure or "its verification failed")
    step = _paused(at) if settings.paused and not wanted.off else _forward(at)
    waits = [d for d in step.decisions if isinstance(d, Insufficient) or (isinstance(d, Wait) and d.bounded)]
    if wanted.off or observed.now - observed.progressed_at <= settings.progress_deadline:
        return step
    if not observed.refused and (step.changes or not waits):
        return step
    why = f"no progress for {settings.progress_deadline:g} s: {observed.refused or waits[0].message}"
    helps = goal in at.traffic and at.serves(at.goal_set)
    if not helps and moves.fallback(at, observed.failed) is not None:
        return _stopped(at, observed, why)
    return Step(Phase.STOPPED, (*_recorded(goal, observed, why), *step.decisions))


def _forward(at: Board) -> Step:
    if at.wanted.off or (moves.exchanging(at) and (at.settings.strategy == "Recreate" or _no_other_way(at))):
        return _recreate(at)
    return _paired(at)


def _paired(at: Board) -> Step:
    """The goal grows within the surge; the others give way to what is proven of it."""
    if (switch := moves.traffic(at)) is not None:
        return Step(Phase.PROGRESSING, (switch,))
    changes, after = moves.size(at, at.aim)
    leading = at.goal in at.traffic and at.counts(at.goal_set)
    if not changes and (leading or moves.first_pair_blocked(at)):
        for revision, role, count in moves.gives_way(at):
            changes.append(Drain(revision, role, count))
            after = after.with_count(revision, role, count)
    return _step(at, after, changes)


def _recreate(at: Board) -> Step:
    """The others stop, then the goal starts. The traffic stays where it was named until the goal is proven."""
    off = at.wanted.off
    if not off and (short := moves.short_to_recreate(at)) is not None:
        return Step(Phase.PROGRESSING, (short,))
    if any((s.pods(role) or NONE).existing or (s.pods(role) or NONE).wanted for s in at.others for role in ENGINES):
        changes, _ = moves.retire(at.with_traffic(()))
        return Step(Phase.PROGRESSING, tuple(changes)) if changes else _waiting(at)
    held = at.settings.paused or (off and at.goal not in at.traffic)
    ready = not at.traffic or (moves.complete(at.goal_set, at) if off else at.proven(at.goal_set))
    if ready and at.traffic != (at.goal,) and (not held or not at.traffic) and (off or at.serves(at.goal_set)):
        return Step(Phase.PROGRESSING, (Switch((at.goal,)),))
    changes, after = moves.size(at, at.aim)
    return _step(at, after if at.goal in at.traffic else after.with_traffic(()), changes)


def _no_other_way(at: Board) -> bool:
    """Whether the goal gets its first pair only where the last of another goes, which the budget allows."""
    allowed = any(at.aim[role] and at.floor(role) == 0 for role in ENGINES)
    own = [at.pods(at.goal, role) for role in ENGINES]
    if moves.unplaced(at) and any(pods.wanted > 1 or pods.draining for pods in own):
        return False
    return allowed and moves.first_pair_blocked(at) and not moves.in_flight(at) and not moves.gives_way(at)


def _stopped(at: Board, observed: Observation, why: str) -> Step:
    """The goal has failed: its traffic returns, and what it was to replace gets its pods back.

    Of the failed set stays what surge and devices allow, so that its logs can be read.
    """
    recorded = _recorded(at.goal, observed, why)
    fallback = moves.fallback(at, observed.failed)
    if fallback is None:
        return Step(Phase.STOPPED, (*recorded, *_forward(at).decisions))
    sound = [s for s in at.others if at.serves(s) and s.verification is not Verification.FAILED]
    rest = tuple(s.revision for s in sound if s.revision in at.traffic)
    if at.goal in at.traffic or (not rest and at.traffic != (fallback,)):
        return Step(Phase.STOPPED, (*recorded, Switch(rest or (fallback,))))
    changes, after, aim = _carry(at, fallback)
    kept = 0 if at.wanted.off else at.settings.max_surge
    if not rest and at.settings.strategy == "Recreate":
        kept = 0
        if any((p := at.pods(at.goal, role)).wanted or p.existing > p.draining for role in ENGINES):
            changes, after = [], replace(at, goal=fallback, trusted=True)
    retired, trial = moves.retire(after, at.goal, kept)
    if moves.outgrows(trial, aim):
        retired, trial = moves.retire(after, at.goal)
    after = trial
    routed, _ = moves.route(after, at.room("router"))
    changes = [*changes, *retired, *routed]
    undone = Wait("undone", Reason.ROLLOUT_FAILED, f"revision {at.goal} failed: change the spec, or undo")
    return Step(Phase.STOPPED, (*recorded, *changes, *([] if changes else [undone])))


def _paused(at: Board) -> Step:
    """The rollout holds; the newest set that serves follows the numbers of the object."""
    held = Wait("resumed", Reason.ROLLING_OUT, "spec.rollout.paused is set: set it to false to go on")
    behind = [s for s in at.sets if s.revision in at.traffic]
    carriers = [s for s in behind if at.serves(s)]
    if not any((s.pods(role) or NONE).wanted for s in at.sets for role in ENGINES):
        # Back from zero.
        carriers = [s for s in behind if s.verification is not Verification.FAILED]
    changes = _carry(at, carriers[0].revision)[0] if carriers else []
    return Step(Phase.PAUSED, (*changes, held))


def _carry(at: Board, carrier: str) -> tuple[list[Change], Board, dict[RoleName, int]]:
    """Bring one set to what the others with traffic leave of the wanted pods, which is the last of the results."""
    at = replace(at, goal=carrier, trusted=True)
    behind = [s for s in at.others if s.revision in at.traffic]
    aim = {
        role: max(min(1, at.aim[role]), at.aim[role] - sum((s.pods(role) or NONE).wanted for s in behind))
        for role in ENGINES
    }
    return (*moves.size(at, aim), aim)


def _step(at: Board, after: Board, changes: list[Change]) -> Step:
    retired, after = moves.retire(after)
    routed, _ = moves.route(after, at.room("router"))
    changes = [*changes, *retired, *routed, *moves.removals(at)]
    return Step(Phase.PROGRESSING, tuple(changes)) if changes else _waiting(at)


def _waiting(at: Board) -> Step:
    """Why there is nothing to change."""
    goal, moving = at.goal_set, moves.exchanging(at)
    complete = moves.complete(goal, at)
    if not moving and at.traffic == (at.goal,) and complete:
        return Step(Phase.COMPLETE)
    off = at.wanted.off
    if off and complete and not any(at.occupied(s) for s in at.others):
        message = f"no engines are asked for: the rollout to revision {at.goal} goes on when some are"
        return Step(Phase.PAUSED, (Wait("asked for", Reason.SUSPENDED, message),))
    return Step(Phase.PROGRESSING, (_wait(at, complete, not off and (moving or at.traffic != (at.goal,))),))


def _wait(at: Board, complete: bool, bounded: bool) -> Decision:
    leaving = [s.revision for s in at.others if any((s.pods(r) or NONE).draining for r in ROLES)]
    if leaving:
        message = f"pods of revision {leaving[0]} finish their requests"
        if name := next((p.overdue for r in ROLES if (p := at.pods(leaving[0], r)).overdue), ""):
            message += (
                f", {name} for longer than it may; on a lost node it never ends: kubectl delete pod {name} --force"
            )
        return Wait("drained", Reason.ROLLING_OUT, message, bounded)
    if (short := moves.short_of_devices(at)) is not None:
        return short
    counts = ", ".join(
        f"{pods.ready} of {pods.wanted} {role}" for role in ROLES if (pods := at.goal_set.pods(role)) is not None
    )
    if any(at.pods(at.goal, role).pending for role in ENGINES):
        message = f"pods of revision {at.goal} have no node ({counts} ready)"
        return Wait("ready", Reason.INSUFFICIENT_CAPACITY, message, bounded)
    if at.serves(at.goal_set) and not at.proven(at.goal_set):
        message = f"the transfer of revision {at.goal} is not verified yet"
        return Wait("verified", Reason.VERIFYING, message, bounded)
    if not complete or not at.serves(at.goal_set):
        return Wait("ready", Reason.STARTING, f"revision {at.goal}: {counts} ready", bounded)
    return Wait("room", Reason.ROLLING_OUT, "the budget leaves no room: pods of a set that serves are missing", bounded)


def _recorded(goal: str, observed: Observation, why: str) -> tuple[Fail, ...]:
    return () if observed.failed == goal else (Fail(goal, f"the rollout to revision {goal} failed: {why}"),)
