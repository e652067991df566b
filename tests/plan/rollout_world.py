"""A cluster that obeys the decisions of a rollout in any order, late or never."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from kvserving_operator.plan.rollout_types import (
    Change,
    Observation,
    Pods,
    Remove,
    RevisionSet,
    SetRole,
    Switch,
    Verification,
)

OLD, NEW = "old", "new"
ENGINES: tuple[SetRole, ...] = ("prefill", "decode")
ROLES: tuple[SetRole, ...] = (*ENGINES, "router")
DEADLINE = 3600.0
UNKNOWN, VERIFIED, FAILED = Verification.UNKNOWN, Verification.VERIFIED, Verification.FAILED


class Group(NamedTuple):
    """The pods of one role in one set, by what they do; ``wanted`` is what the workload was told."""

    wanted: int = 0
    starting: int = 0
    ready: int = 0
    draining: int = 0

    @property
    def alive(self) -> int:
        return self.starting + self.ready

    @property
    def existing(self) -> int:
        return self.starting + self.ready + self.draining

    @property
    def promised(self) -> int:
        """Pods that exist once the workload has made what it was told, and none has finished stopping."""
        return max(self.wanted, self.alive) + self.draining


NONE = Group()


class Set(NamedTuple):
    """One revisioned set; without routers where ``router`` is None."""

    name: str
    prefill: Group = NONE
    decode: Group = NONE
    router: Group | None = None
    verification: Verification = UNKNOWN

    def group(self, role: SetRole) -> Group:
        found = self.prefill if role == "prefill" else self.decode if role == "decode" else self.router
        return found or NONE

    def put(self, role: SetRole, group: Group, verification: Verification | None = None) -> Set:
        prefill = group if role == "prefill" else self.prefill
        decode = group if role == "decode" else self.decode
        router = group if role == "router" else self.router
        return Set(self.name, prefill, decode, router, verification or self.verification)

    @property
    def roles(self) -> tuple[SetRole, ...]:
        return ENGINES if self.router is None else (*ENGINES, "router")

    @property
    def whole(self) -> bool:
        return bool(self.prefill.ready and self.decode.ready and (self.router is None or self.router.ready))

    @property
    def empty(self) -> bool:
        return not any(self.group(role).promised for role in self.roles)


class World(NamedTuple):
    """All sets, oldest first; which have traffic; the rollout recorded as failed; deaths to come; time up or not."""

    sets: tuple[Set, ...]
    traffic: tuple[str, ...]
    failed: str | None = None
    deaths: int = 0
    expired: bool = False

    def existing(self, role: SetRole) -> int:
        return sum(s.group(role).existing for s in self.sets)

    def promised(self, role: SetRole) -> int:
        return sum(s.group(role).promised for s in self.sets)

    def serving(self, role: SetRole) -> int:
        """Ready pods that can answer: of whole sets with traffic whose transfer did not fail."""
        sets = (s for s in self.sets if s.name in self.traffic and s.whole and s.verification is not FAILED)
        return sum(s.group(role).ready for s in sets)

    def named(self, name: str) -> Set:
        return next((s for s in self.sets if s.name == name), Set(name))

    def with_set(self, changed: Set) -> World:
        sets = tuple([changed if s.name == changed.name else s for s in self.sets])
        if changed not in sets:
            sets = (*sets, changed)
        return World(sets, self.traffic, self.failed, self.deaths, self.expired)


@dataclass(frozen=True)
class Rules:
    """What may happen in a world.

    ``lag``: workloads make and stop their pods one by one, some time later. ``partial``: of a step only one change
    may be applied before the next is planned. ``any_order``: a workload that gets smaller may stop ready pods first.
    ``devices``: how many pods there is room for; ``told``: whether the planner is told how many are left.
    ``deaths``: how many pods die on the way. ``coarse``: of the pods of a group half or all become
    ready at once, and all finish at once, where otherwise it is one.
    """

    lag: bool = False
    partial: bool = False
    any_order: bool = False
    may_fail: bool = False
    may_expire: bool = False
    devices: int | None = None
    told: bool = True
    deaths: int = 0
    coarse: bool = False


def running(name: str, prefill: int, decode: int, routers: int | None = None) -> Set:
    """A set whose pods all serve."""
    router = None if routers is None else Group(routers, 0, routers)
    return Set(name, Group(prefill, 0, prefill), Group(decode, 0, decode), router, VERIFIED)


@cache
def _seen(of: Set, number: int, devices: int, pending_prefill: int, pending_decode: int) -> RevisionSet:
    def pods(group: Group, pending: int, each: int) -> Pods:
        return Pods(group.wanted, group.existing, group.ready, group.draining, pending, each)

    prefill, decode = pods(of.prefill, pending_prefill, devices), pods(of.decode, pending_decode, devices)
    router = None if of.router is None else pods(of.router, 0, 0)
    return RevisionSet(of.name, number, decode, prefill, router, of.verification)


def homeless(world: World, rules: Rules) -> tuple[int, int]:
    """Starting pods of the newest set for which there is no device, by role."""
    if rules.devices is None:
        return 0, 0
    over = max(0, world.existing("prefill") + world.existing("decode") - rules.devices)
    newest = world.sets[-1]
    decode = min(over, newest.decode.starting)
    return min(over - decode, newest.prefill.starting), decode


def observe(world: World, rules: Rules) -> Observation:
    pending = homeless(world, rules)
    last = len(world.sets) - 1
    sets = tuple(
        _seen(s, i, int(rules.devices is not None), *(pending if i == last else (0, 0)))
        for i, s in enumerate(world.sets)
    )
    free = None
    if rules.devices is not None and rules.told:
        free = max(0, rules.devices - world.existing("prefill") - world.existing("decode"))
    now = DEADLINE + 1 if world.expired else 0.0
    return Observation(sets, world.traffic, world.failed, free, now, 0.0)


def events(world: World, rules: Rules) -> Iterator[World]:
    """What the cluster may do next. Pods of the newest set no longer start once time is up: they never will."""
    newest = world.sets[-1].name
    pending = dict(zip(ENGINES, homeless(world, rules), strict=True))
    for s in world.sets:
        new = s.name == newest
        for role in s.roles:
            group = s.group(role)
            able = 0 if new and world.expired else group.starting - (pending.get(role, 0) if new else 0)
            proof = UNKNOWN if new and role != "router" and s.verification is VERIFIED else s.verification
            for n in _some(able, rules):
                started = Group(group.wanted, group.starting - n, group.ready + n, group.draining)
                yield world.with_set(s.put(role, started, proof))
            for n in (group.draining,) if rules.coarse and group.draining else _some(group.draining, rules):
                yield world.with_set(s.put(role, Group(group.wanted, group.starting, group.ready, group.draining - n)))
            if rules.lag and group.alive != group.wanted:
                for changed in _obeying(group, rules):
                    yield world.with_set(s.put(role, changed))
        if new and s.verification is UNKNOWN and s.whole:
            yield world.with_set(s._replace(verification=VERIFIED))
            if rules.may_fail:
                yield world.with_set(s._replace(verification=FAILED))


def _some(pods: int, rules: Rules) -> tuple[int, ...]:
    """How many of ``pods`` may do the next thing at once."""
    if pods <= 0:
        return ()
    return (1,) if not rules.coarse or pods == 1 else (pods - pods // 2, pods)


def faults(world: World, rules: Rules) -> Iterator[World]:
    """What goes wrong and need not: a pod dies and starts again, the deadline passes."""
    if world.deaths:
        for s in world.sets:
            for role in s.roles:
                group = s.group(role)
                if group.ready:
                    dead = group._replace(starting=group.starting + 1, ready=group.ready - 1)
                    yield world.with_set(s.put(role, dead))._replace(deaths=world.deaths - 1)
    if rules.may_expire and not world.expired:
        yield world._replace(expired=True)


def _obeying(group: Group, rules: Rules) -> Iterator[Group]:
    """The next pod that a workload makes or stops."""
    wanted, starting, ready, draining = group
    if group.alive < wanted:
        yield Group(wanted, starting + 1, ready, draining)
        return
    if starting:
        yield Group(wanted, starting - 1, ready, draining + 1)
    if ready and (not starting or rules.any_order):
        yield Group(wanted, starting, ready - 1, draining + 1)


def applied(world: World, change: Change, rules: Rules) -> World:
    """The world after one change; without ``lag`` the workload has obeyed at once."""
    if isinstance(change, Switch):
        return world._replace(traffic=change.revisions)
    if isinstance(change, Remove):
        return world._replace(sets=tuple(s for s in world.sets if s.name != change.revision))
    s = world.named(change.revision)
    group = s.group(change.role)._replace(wanted=change.count)
    while not rules.lag and group.alive != group.wanted:
        group = next(_obeying(group, rules))
    return world.with_set(s.put(change.role, group))
