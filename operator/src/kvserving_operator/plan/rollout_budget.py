"""What a rollout may do: pods counted against surge, unavailability and devices. Pure sums, no order of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..api.v1alpha1 import RoleName
from .rollout_types import ENGINES, ROLES, Observation, Pods, RevisionSet, SetRole, Settings, Verification, Wanted

ROUTERS_SHARED = 10
"""Routers in all while sets share the traffic, at least: their numbers are what divides it."""

_NONE = Pods()


@dataclass(frozen=True)
class Board:
    """The sets of one object, with the changes that the step at hand has made so far.

    ``goal`` is the set that is to serve. Its pods are capacity only with a fresh proof, unless it is
    ``trusted``: a set that served before.
    """

    sets: tuple[RevisionSet, ...]
    traffic: tuple[str, ...]
    free: int | None
    wanted: Wanted
    settings: Settings
    goal: str
    trusted: bool = False

    @cached_property
    def others(self) -> tuple[RevisionSet, ...]:
        """Every set but the goal, newest first."""
        return tuple(s for s in self.sets if s.revision != self.goal)

    @cached_property
    def known(self) -> dict[str, RevisionSet]:
        """Every set by its revision."""
        return {s.revision: s for s in self.sets}

    @property
    def goal_set(self) -> RevisionSet:
        """The set that is to serve."""
        return self.known[self.goal]

    @cached_property
    def aim(self) -> dict[RoleName, int]:
        """The engines that the goal is to have."""
        return {role: self.wanted.count(role) or 0 for role in ENGINES}

    def occupied(self, of: RevisionSet) -> bool:
        """Whether a set has pods, or will."""
        return any(held(of.pods(role) or _NONE) for role in ROLES)

    def pods(self, revision: str, role: SetRole) -> Pods:
        """The pods of a role in a set, none where there is no such role."""
        of = self.known.get(revision)
        return _NONE if of is None else of.pods(role) or _NONE

    def with_count(self, revision: str, role: SetRole, count: int) -> Board:
        """The board after a role of a set was told ``count``."""
        pods = replace(self.pods(revision, role), wanted=count)
        return self.with_sets(tuple(_with(s, role, pods) if s.revision == revision else s for s in self.sets))

    def with_sets(self, sets: tuple[RevisionSet, ...]) -> Board:
        """The board with other sets."""
        return Board(sets, self.traffic, self.free, self.wanted, self.settings, self.goal, self.trusted)

    def with_traffic(self, traffic: tuple[str, ...]) -> Board:
        """The board with another traffic."""
        return Board(self.sets, traffic, self.free, self.wanted, self.settings, self.goal, self.trusted)

    def ceiling(self, role: SetRole) -> int:
        """The most pods of a role that may exist, over all sets."""
        if role != "router":
            return self.aim[role] + self.settings.max_surge
        return max(ROUTERS_SHARED, (self.wanted.count("router") or 0) + max(1, len(self.traffic) - 1))

    def floor(self, role: SetRole) -> int:
        """The fewest pods of a role that must serve, over all sets."""
        if role != "router":
            return max(0, self.aim[role] - self.settings.max_unavailable)
        return self.wanted.count("router") or 0

    def held(self, role: SetRole) -> int:
        """Pods of a role that exist or will, over all sets."""
        return sum(held(s.pods(role) or _NONE) for s in self.sets)

    def room(self, role: SetRole) -> int:
        """Pods of a role that may still be added."""
        return max(0, self.ceiling(role) - self.held(role))

    def left(self, of: RevisionSet, role: SetRole) -> int:
        """Ready pods of a role that are left when its workload has done what it was told."""
        pods = of.pods(role) or _NONE
        if self.settings.unready_first:
            return min(pods.ready, pods.wanted)
        return max(0, pods.ready - max(0, pods.existing - pods.draining - pods.wanted))

    def serves(self, of: RevisionSet) -> bool:
        """Whether a set can answer a request: every role that it has is there."""
        return all(of.pods(role) is None or self.left(of, role) > 0 for role in ROLES)

    def counts(self, of: RevisionSet) -> bool:
        """Whether the ready pods of a set are capacity: it has traffic, is whole, and moves KV as far as is known."""
        if of.revision not in self.traffic or of.verification is Verification.FAILED or not self.serves(of):
            return False
        return of.revision != self.goal or self.trusted or self.proven(of)

    def proven(self, of: RevisionSet) -> bool:
        """Whether a set may take traffic. Without a prefill there is no transfer to verify."""
        return self.serves(of) and (of.prefill is None or of.verification is Verification.VERIFIED)

    @cached_property
    def counted(self) -> tuple[RevisionSet, ...]:
        """The sets whose ready pods are capacity."""
        return tuple(s for s in self.sets if self.counts(s))

    def capacity(self, role: SetRole) -> int:
        """Pods of a role that serve: ready, and in a set that can answer."""
        return sum(self.left(s, role) for s in self.counted)

    def slack(self, role: SetRole) -> int:
        """Serving pods of a role that the budget does not need."""
        return max(0, self.capacity(role) - self.floor(role))

    def spendable(self, of: RevisionSet, role: SetRole) -> int:
        """How many pods of a role a set may lose and stay whole, while the budget holds."""
        pods, left = of.pods(role) or _NONE, self.left(of, role)
        slack = self.slack(role) if self.counts(of) else 0
        if self.settings.unready_first:
            most = max(0, pods.wanted - left) + slack
        else:
            # Those that were not made yet go without any other; of the rest, none says whether it is a ready one.
            most = max(0, pods.wanted - (pods.existing - pods.draining)) + min(slack, max(0, left - 1))
        return max(0, min(most, pods.wanted - 1))

    def keeps_budget(self, after: Board, roles: Sequence[SetRole] = ROLES) -> bool:
        """Whether ``after`` leaves the capacity that the budget asks for, or what there is where that is less."""
        return all(after.capacity(role) >= min(self.floor(role), self.capacity(role)) for role in roles)

    def spare_devices(self) -> int | None:
        """Free devices that no pod waits for."""
        if self.free is None:
            return None
        waiting = 0
        for s in self.sets:
            for role in ENGINES:
                pods = s.pods(role) or _NONE
                alive = pods.existing - pods.draining
                waiting += (max(pods.wanted, alive) - (alive - pods.pending)) * self.devices(s.revision, role)
        return self.free - waiting

    def devices(self, revision: str, role: SetRole) -> int:
        """Devices of one pod of a role in a set."""
        if revision == self.wanted.revision or revision not in self.known:
            wanted = self.wanted
            asked = wanted.prefill_devices if role == "prefill" else wanted.decode_devices
            return max(0, asked)
        return self.pods(revision, role).devices


def board(observed: Observation, wanted: Wanted, settings: Settings, goal: str, *, trusted: bool = False) -> Board:
    """The board of an observation. Counts that contradict each other are read as the fewest ready pods they allow."""
    known: dict[str, RevisionSet] = {}
    for s in sorted(observed.sets, key=lambda s: (-s.number, s.revision)):
        known.setdefault(s.revision, _clean(s))
    aim = known.get(goal, RevisionSet(goal, 1 + max((s.number for s in known.values()), default=0), _NONE))
    if wanted.prefill is not None and aim.prefill is None:
        aim = replace(aim, prefill=_NONE)
    if wanted.router is not None and aim.router is None:
        aim = replace(aim, router=_NONE)
    known[goal] = aim
    settings = replace(settings, max_surge=max(0, settings.max_surge), max_unavailable=max(0, settings.max_unavailable))
    sets = tuple(sorted(known.values(), key=lambda s: (-s.number, s.revision)))
    traffic = tuple(dict.fromkeys(observed.traffic))
    return Board(sets, traffic, observed.free, wanted, settings, goal, trusted)


def shares(at: Board, leaving: str | None) -> dict[str, int]:
    """Routers that each set should have: as its decodes are to all decodes, where sets share the traffic.

    A set that waits for its traffic has one, for the probe through the router; one that is about to leave
    keeps one; one without engines has none.
    """
    count = at.wanted.count("router")
    if count is None:
        return {}
    behind = [s for s in at.sets if s.revision in at.traffic and s.router is not None]
    alone = [s.revision for s in behind] == [at.goal]
    found = {s.revision: 0 for s in behind if not alone and not all(_wants(s))}
    behind = [s for s in behind if s.revision not in found]
    if len(behind) == 1:
        found[behind[0].revision] = count
    elif behind:
        weights = {s.revision: at.left(s, "decode") for s in behind if s.verification is not Verification.FAILED}
        weights = {revision: n for revision, n in weights.items() if n > 0 and revision != leaving}
        found |= {s.revision: 1 for s in behind}
        # One is left for the goal's probe.
        waiting = at.goal not in at.traffic and any(_wants(at.goal_set))
        total = at.ceiling("router") - len(behind) + len(weights) - waiting
        found |= _apportion(weights, total) if weights else {}
    if at.goal not in at.traffic and any(_wants(at.goal_set)):
        found[at.goal] = min(1, count)
    return found


def _wants(of: RevisionSet) -> list[bool]:
    return [pods.wanted > 0 for role in ENGINES if (pods := of.pods(role)) is not None]


def _apportion(weights: dict[str, int], total: int) -> dict[str, int]:
    """``total`` divided as the weights are, at least one each; what rounding leaves goes to the largest parts."""
    whole = sum(weights.values())
    parts = {name: max(1, total * weight // whole) for name, weight in weights.items()}
    rest = total - sum(parts.values())
    for name in sorted(weights, key=lambda n: (-(total * weights[n] % whole), n))[: max(0, rest)]:
        parts[name] += 1
    most = max(parts, key=lambda n: (parts[n], n))
    parts[most] = max(1, parts[most] + min(0, rest))
    return parts


def held(pods: Pods) -> int:
    """Pods that exist or will, whatever the workload has got done of what it was told."""
    return max(pods.wanted, pods.existing - pods.draining) + pods.draining


def _with(of: RevisionSet, role: SetRole, pods: Pods) -> RevisionSet:
    if role == "prefill":
        return replace(of, prefill=pods)
    return replace(of, decode=pods) if role == "decode" else replace(of, router=pods)


def _clean(of: RevisionSet) -> RevisionSet:
    prefill, decode, router = _counted(of.prefill), _counted(of.decode) or _NONE, _counted(of.router)
    if prefill is of.prefill and decode is of.decode and router is of.router:
        return of
    return replace(of, prefill=prefill, decode=decode, router=router)


def _counted(pods: Pods | None) -> Pods | None:
    if pods is None:
        return None
    lowest = min(pods.wanted, pods.ready, pods.draining, pods.pending, pods.devices)
    if lowest >= 0 and max(pods.ready, pods.pending) <= pods.existing - pods.draining:
        return pods
    existing = max(0, pods.existing)
    draining = min(max(0, pods.draining), existing)
    alive = existing - draining
    return Pods(
        wanted=max(0, pods.wanted),
        existing=existing,
        ready=min(max(0, pods.ready), alive),
        draining=draining,
        pending=min(max(0, pods.pending), alive),
        devices=max(0, pods.devices),
    )
