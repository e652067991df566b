"""The changes that a step of a rollout may consist of: grow, give way, retire, route, remove. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..api.v1alpha1 import RoleName
from .rollout_budget import Board, shares
from .rollout_types import (
    ENGINES,
    ROLES,
    Change,
    Drain,
    Insufficient,
    Pods,
    Remove,
    RevisionSet,
    Scale,
    Switch,
    Verification,
)

NONE = Pods()

Lowered = tuple[str, RoleName, int]


def exchanging(at: Board) -> bool:
    """Whether another set still has pods or traffic."""
    return any(revision != at.goal for revision in at.traffic) or any(at.occupied(s) for s in at.others)


def in_flight(at: Board) -> bool:
    """Whether pods of other sets are on their way out."""
    found = (s.pods(role) or NONE for s in at.others for role in ENGINES)
    return any(p.draining or p.existing > p.wanted for p in found)


def fallback(at: Board, failed: str | None) -> str | None:
    """The set that serves when the goal does not: the newest with traffic, else the newest that is verified.

    Where none serves, it is the newest with traffic all the same: one that was told to stop keeps it until another
    set is proven.
    """
    known = [
        s
        for s in at.others
        if s.verification is not Verification.FAILED and s.revision not in (failed, at.wanted.revision)
    ]
    sound = [s for s in known if at.serves(s)]
    behind = [s for s in known if s.revision in at.traffic]
    found = [s for s in behind if at.serves(s)] or [s for s in sound if at.proven(s)] or behind
    return found[0].revision if found else None


def size(at: Board, aim: Mapping[RoleName, int]) -> tuple[list[Change], Board]:
    """Bring the goal to ``aim`` as far as surge, devices and budget allow.

    It gets no more pods while the scheduler has no node for those that it has, or, where free devices are not
    known, before each role has one that is ready; and where a role has none on a
    node, it shrinks to a first pair, so that the one role does not hold the devices of the other.
    """
    changes: list[Change] = []
    if exchanging(at) and any(at.pods(at.goal, r).pending for r in ENGINES):
        least = unplaced(at) and at.goal not in at.traffic
        aim = {r: min(aim[r], 1 if least else at.pods(at.goal, r).wanted) for r in ENGINES}
    elif exchanging(at) and at.free is None and any(aim[r] and not at.left(at.goal_set, r) for r in ENGINES):
        aim = {r: min(aim[r], at.pods(at.goal, r).wanted or aim[r]) for r in ENGINES}
    grown, before = growth(at, aim), at
    for role in ENGINES:
        pods = before.goal_set.pods(role)
        if pods is None:
            continue
        count = pods.wanted + grown[role]
        if pods.wanted > aim[role]:
            count = pods.wanted - min(pods.wanted - aim[role], _sheddable(before, role, aim[role]))
        if count != pods.wanted:
            changes.append((Scale if count > pods.wanted else Drain)(at.goal, role, count))
            at = at.with_count(at.goal, role, count)
    return changes, at


def _sheddable(at: Board, role: RoleName, aim: int) -> int:
    """How many pods of a role the goal may give up on its way down to ``aim``."""
    pods = at.pods(at.goal, role)
    wished = aim == 0 and not at.wanted.count(role)
    if wished or (at.settings.unready_first and at.keeps_budget(at.with_count(at.goal, role, aim))):
        return pods.wanted - aim
    return at.spendable(at.goal_set, role)


def growth(at: Board, aim: Mapping[RoleName, int]) -> dict[RoleName, int]:
    """Pods to add to each role of the goal. Devices go first to a first pair, then where most is missing."""
    have = {role: at.pods(at.goal, role).wanted for role in ENGINES}
    given: dict[RoleName, int] = dict.fromkeys(ENGINES, 0)
    if not exchanging(at):
        # Numbers of one set follow the scaler: pods that still drain hold nobody up.
        return {role: max(0, aim[role] - have[role]) for role in ENGINES}
    first = [r for r in ENGINES if have[r] == 0 and aim[r] > 0]
    if any(at.room(r) == 0 for r in first):
        return given
    grown = {role: max(0, min(aim[role] - have[role], at.room(role))) for role in ENGINES}
    spare = at.spare_devices()
    cost = {role: at.devices(at.goal, role) for role in ENGINES}
    if spare is None or sum(grown[r] * cost[r] for r in ENGINES) <= spare:
        return grown
    if sum(cost[r] for r in first) > spare:
        return given
    for r in first:
        given[r], spare = 1, spare - cost[r]
    while behind := [r for r in ENGINES if given[r] < grown[r] and cost[r] <= spare]:
        lowest = min(behind, key=lambda r: (have[r] + given[r]) / aim[r])
        given[lowest], spare = given[lowest] + 1, spare - cost[lowest]
    return given


def short_of_devices(at: Board) -> Insufficient | None:
    """What the surge has room for and the devices have not."""
    aim = at.aim
    spare = at.spare_devices()
    if spare is None or not exchanging(at) or any(growth(at, aim).values()):
        return None
    have = {role: at.pods(at.goal, role).wanted for role in ENGINES}
    lacking = [r for r in ENGINES if have[r] < aim[r] and at.room(r)]
    asked = [r for r in lacking if have[r] == 0] or lacking[:1]
    needed = sum(at.devices(at.goal, r) for r in asked)
    if not asked or needed <= spare:
        return None
    sum_ = " + ".join(f"{at.devices(at.goal, r)} for a {r}" for r in asked)
    return Insufficient(
        needed,
        max(0, spare),
        f"{sum_} = {needed} devices are needed beside what runs and {max(0, spare)} are free: add nodes, "
        "set spec.rollout.maxUnavailable, or set strategy to Recreate",
    )


def short_to_recreate(at: Board) -> Insufficient | None:
    """What the new set needs beyond all that the old ones would leave, asked while an old one still serves."""
    if at.free is None or not any(at.serves(s) for s in at.others):
        return None
    freed = sum(at.devices(s.revision, r) * (s.pods(r) or NONE).existing for s in at.sets for r in ENGINES)
    needed = sum(at.devices(at.goal, r) * at.aim[r] for r in ENGINES)
    if needed <= at.free + freed:
        return None
    return Insufficient(
        needed,
        at.free + freed,
        f"revision {at.goal} needs {needed} devices, and {at.free + freed} would be free once everything else has "
        "stopped: lower replicas or parallelism, or add nodes",
    )


def coming(at: Board, role: RoleName) -> int:
    """Pods of a role that there will be room for once all on their way out have gone; negative where more must go."""
    room = at.ceiling(role) - sum((s.pods(role) or NONE).wanted for s in at.sets)
    spare, cost = at.spare_devices(), at.devices(at.goal, role)
    return room if spare is None or not cost else min(room, (spare + _leaving_devices(at)) // cost)


def _leaving_devices(at: Board) -> int:
    return sum(
        (pods.existing - min(pods.wanted, pods.existing - pods.draining)) * at.devices(s.revision, role)
        for s in at.sets
        for role in ENGINES
        if (pods := s.pods(role)) is not None
    )


def lacking(at: Board, role: RoleName) -> int:
    """Pods of a role for which the goal needs that others go, beyond those that are going."""
    missing = max(0, at.aim[role] - at.pods(at.goal, role).wanted)
    lacks = missing - min(missing, coming(at, role)) if missing else 0
    return lacks if at.free is not None or in_flight(at) else lacks + at.pods(at.goal, role).pending


def gives_way(at: Board) -> list[Lowered]:
    """How far the sets that share the traffic go down, newest first: by what the goal lacks and the budget allows.

    To a goal that is not proven they give no pod that may come back and be needed, and none at all where
    that would not bring it a first pair: half of one serves nobody. Where devices are what is missing, a
    pod of the one role makes room for the other.
    """
    found: list[Lowered] = []
    leads = at.goal in at.traffic and at.counts(at.goal_set)
    still = 0
    for role in ENGINES:
        lowered, at, lacks = _lower(at, role, lacking(at, role), leads)
        found += lowered
        if at.free is not None or at.pods(at.goal, role).pending:
            still += lacks
    if leads and still:
        for role in ENGINES:
            lowered, at, still = _lower(at, role, still, leads)
            found += lowered
    return found if leads or _first_pair_comes(at) else []


def _lower(at: Board, role: RoleName, lacks: int, leads: bool) -> tuple[list[Lowered], Board, int]:
    found: list[Lowered] = []
    for other in at.others:
        if other.revision not in at.traffic:
            continue
        lost = min(lacks, at.spendable(at.known[other.revision], role))
        if not leads:
            kept = sum((s.pods(role) or NONE).wanted for s in at.others if s.revision in at.traffic)
            lost = min(lost, kept - at.floor(role))
        if lost > 0:
            count = at.pods(other.revision, role).wanted - lost
            found.append((other.revision, role, count))
            at, lacks = at.with_count(other.revision, role, count), lacks - lost
    return found, at, lacks


def _first_pair_comes(at: Board) -> bool:
    missing = [r for r in ENGINES if at.aim[r] > 0 and at.pods(at.goal, r).wanted == 0]
    spare = at.spare_devices()
    if spare is not None and sum(at.devices(at.goal, r) for r in missing) > spare + _leaving_devices(at):
        return False
    return all(coming(at, r) > 0 for r in missing)


def first_pair_blocked(at: Board) -> bool:
    """Whether the goal cannot get its first pair: no room, no devices, or no node for any pod of a role."""
    if unplaced(at):
        return True
    missing = [r for r in ENGINES if at.aim[r] > 0 and at.pods(at.goal, r).wanted == 0]
    return bool(missing) and not any(growth(at, at.aim).values())


def unplaced(at: Board) -> bool:
    """Whether a role of the goal has no pod on a node."""
    found = (at.pods(at.goal, role) for role in ENGINES)
    return any(pods.pending > 0 and pods.existing - pods.draining <= pods.pending for pods in found)


def leaving(at: Board) -> str | None:
    """The set that may leave the traffic: the goal is whole without it, or goes no further as long as it is there."""
    goal = at.goal_set
    if at.goal not in at.traffic or not at.counts(goal):
        return _superfluous(at)
    grown = all(at.pods(at.goal, role).wanted >= at.aim[role] for role in ENGINES)
    if not grown and (
        any(growth(at, at.aim).values()) or not any(lacking(at, role) for role in ENGINES) or gives_way(at)
    ):
        return None
    known = [s.revision for s in at.others if s.revision in at.traffic]
    for revision in [r for r in at.traffic if r != at.goal and r not in known] + known:
        if at.keeps_budget(_without(at, revision), ENGINES):
            return revision
    return None


def _superfluous(at: Board) -> str | None:
    """The newest of several old sets that the budget does not need, where no first pair of the goal has room."""
    behind = [s.revision for s in at.others if s.revision in at.traffic]
    if at.goal in at.traffic or len(behind) < 2 or not first_pair_blocked(at) or in_flight(at) or gives_way(at):
        return None
    for revision in behind:
        after = _without(at, revision)
        if all(after.capacity(role) >= max(1, at.floor(role)) for role in ENGINES if at.aim[role]):
            return revision
    return None


def traffic(at: Board) -> Switch | None:
    """The change of traffic that is due: the goal joins once it is proven, others leave once they are not needed."""
    goal = at.goal_set
    serving = [s.revision for s in at.others if at.serves(s) and s.verification is not Verification.FAILED]
    if (out := leaving(at)) is not None:
        after = _without(at, out)
        return Switch(after.traffic) if at.keeps_budget(after, ("router",)) else None
    if at.goal in at.traffic:
        return None
    if at.proven(goal) or (not at.traffic and not serving and at.serves(goal)):
        return Switch((at.goal, *(s.revision for s in at.others if s.revision in at.traffic and at.serves(s))))
    if not at.traffic and serving:
        return Switch((serving[0],))
    return None


def retire(at: Board, spare: str = "", kept: int = 0) -> tuple[list[Change], Board]:
    """Drain what has no traffic: its routers first, then, once these have finished, its engines together.

    Of ``spare`` stay ``kept`` pods of each role.
    """
    changes: list[Change] = []
    for other in at.others:
        if other.revision in at.traffic:
            continue
        most = kept if other.revision == spare else 0
        finished = (other.router or NONE).existing == 0
        for role in ROLES:
            pods = other.pods(role) or NONE
            if pods.wanted > most and (most > 0 or finished or role == "router"):
                changes.append(Drain(other.revision, role, most))
                at = at.with_count(other.revision, role, most)
    return changes, at


def outgrows(at: Board, aim: Mapping[RoleName, int]) -> bool:
    """Whether the goal is kept from ``aim`` by devices, those of pods on their way out counted as free."""
    if any(at.pods(at.goal, role).pending for role in ENGINES):
        return True
    spare = at.spare_devices()
    missing = sum(max(0, aim[r] - at.pods(at.goal, r).wanted) * at.devices(at.goal, r) for r in ENGINES)
    return spare is not None and missing > spare + _leaving_devices(at)


def route(at: Board, room: int) -> tuple[list[Change], Board]:
    """Bring the routers to the shares of their sets, with no fewer ready ones than are wanted in all.

    ``room`` is what there was for more of them before the step: what the step lowers may be lowered later.
    """
    changes: list[Change] = []
    if at.wanted.router is None:
        return changes, at
    for revision, count in shares(at, leaving(at)).items():
        pods = at.pods(revision, "router")
        if count > pods.wanted:
            count = min(count, pods.wanted + room)
            room -= max(0, count - max(pods.wanted, pods.existing - pods.draining))
        elif count > 0 and revision in at.traffic:
            count = max(count, pods.wanted - at.spendable(at.known[revision], "router"))
        if count != pods.wanted:
            changes.append((Scale if count > pods.wanted else Drain)(revision, "router", count))
            at = at.with_count(revision, "router", count)
    return changes, at


def removals(at: Board) -> list[Change]:
    """Sets without pods or traffic."""
    empty = [s for s in at.others if s.revision not in at.traffic and not at.occupied(s)]
    return [Remove(s.revision) for s in empty if s.revision != at.wanted.revision]


def complete(of: RevisionSet, at: Board) -> bool:
    """Whether every pod that is wanted of a set is there and ready."""
    return all(
        (of.pods(role) or NONE).wanted == (at.wanted.count(role) or 0)
        and at.left(of, role) == (at.wanted.count(role) or 0)
        for role in ENGINES
    )


def _without(at: Board, revision: str) -> Board:
    return at.with_traffic(tuple(r for r in at.traffic if r != revision))
