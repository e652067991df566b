"""What must hold of every rollout, looked for in every state that can be reached.

Nothing is taken from the planner but the types of what goes in and comes out: what is above or below the
budget is counted again, from pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.plan.rollout_world import (
    ENGINES,
    FAILED,
    ROLES,
    VERIFIED,
    Group,
    Rules,
    World,
    applied,
    events,
    faults,
    observe,
)

from kvserving_operator.plan.rollout import next_step
from kvserving_operator.plan.rollout_types import (
    Change,
    Fail,
    Insufficient,
    Observation,
    Phase,
    Remove,
    SetRole,
    Settings,
    Step,
    Switch,
    Wait,
    Wanted,
)
from kvserving_operator.reasons import Reason

Planner = Callable[[Observation, Wanted, Settings], Step]


@dataclass
class Report:
    """What was found: the number of states, the ends, and the first state in which something does not hold."""

    states: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    problem: str = ""


def breach(before: World, change: Change, after: World, wanted: Wanted, settings: Settings, rules: Rules) -> str:
    """What a change breaks; empty where it keeps the budget. Counts as if the workload had obeyed already."""
    if isinstance(change, Remove):
        return "" if before.named(change.revision).empty else f"{change.revision} is removed and has pods"
    if isinstance(change, Switch):
        for name in change.revisions:
            proven = before.named(name).whole and before.named(name).verification is VERIFIED
            if name not in before.traffic and before.traffic and not proven and not wanted.off:
                return f"traffic to {name}, which is not verified"
    for role in ROLES:
        most = _most(before, role, wanted, settings)
        if after.promised(role) > max(most, before.promised(role)):
            return f"{after.promised(role)} {role} pods, above {most}"
    if may_stop(wanted, settings, rules):
        return ""
    settled, was = _settled(after, settings), _settled(before, settings)
    for role in ROLES:
        least = (wanted.count(role) or 0) - (0 if role == "router" else max(0, settings.max_unavailable))
        if settled.serving(role) < min(was.serving(role), least):
            return f"{settled.serving(role)} {role} pods serve, below {least}"
    return ""


def _most(world: World, role: SetRole, wanted: Wanted, settings: Settings) -> int:
    count = wanted.count(role) or 0
    there = [s for s in world.sets if s.name in world.traffic or any(any(s.group(r)) for r in s.roles)]
    if role != "router" and len(there) == 1:
        # Pods of a set alone that drain hold no others up.
        count += sum(s.group(role).draining for s in world.sets)
    return max(10, count + max(1, len(world.traffic) - 1)) if role == "router" else count + max(0, settings.max_surge)


def may_stop(wanted: Wanted, settings: Settings, rules: Rules) -> bool:
    """Whether the object allows that nothing serves: it says so, or has no spare pod and may lack its only one."""
    if settings.strategy == "Recreate" or wanted.off:
        return True
    counts = [wanted.count(role) or 0 for role in ENGINES]
    no_spare = settings.max_surge <= 0 or (rules.devices is not None and rules.devices < sum(counts) + 2)
    return no_spare and min(counts) <= settings.max_unavailable


def _settled(world: World, settings: Settings) -> World:
    """The world once every workload that must get smaller did so, giving up the pods that serve where it may."""
    sets = world.sets
    for i, s in enumerate(sets):
        for role in s.roles:
            wanted, starting, ready, draining = s.group(role)
            over = starting + ready - wanted
            if over > 0:
                first = min(starting, over) if settings.unready_first else 0
                lost = min(ready, over - first)
                group = Group(wanted, starting - first, ready - lost, draining + over)
                sets = (*sets[:i], sets[i].put(role, group), *sets[i + 1 :])
    return world if sets is world.sets else world._replace(sets=sets)


def mirrored(world: World) -> World:
    """The world with the roles exchanged."""
    return world._replace(sets=tuple(s._replace(prefill=s.decode, decode=s.prefill) for s in world.sets))


def explore(
    start: World,
    wanted: Wanted,
    settings: Settings,
    rules: Rules = Rules(),  # noqa: B008
    planner: Planner = next_step,
) -> Report:
    """Visit every world that can be reached, and stop at the first in which something does not hold.

    A path that comes back to a world that it left would go on for ever, and is a problem of its own. Where
    the roles are alike, of two worlds that mirror each other one is visited.
    """
    start = start._replace(deaths=rules.deaths)
    alike = start == mirrored(start) and wanted.prefill == wanted.decode and rules.devices is None
    report, done, path = Report(states=1), set(), {start}
    stack = [(start, _next(start, wanted, settings, rules, planner, report))]
    while stack and not report.problem:
        world, following = stack[-1]
        after = next(following, None)
        if after is None:
            stack.pop()
            path.discard(world)
            done.add(world)
            continue
        if alike:
            after = min(after, mirrored(after))
        if after in path:
            report.problem = f"comes back to {after}\n  {wanted} {settings} {rules}"
        elif after not in done:
            report.states += 1
            path.add(after)
            stack.append((after, _next(after, wanted, settings, rules, planner, report)))
    return report


def _next(
    world: World, wanted: Wanted, settings: Settings, rules: Rules, planner: Planner, report: Report
) -> Iterator[World]:
    step = planner(observe(world, rules), wanted, settings)
    recorded = world
    for decision in step.decisions:
        if isinstance(decision, Fail):
            recorded = recorded._replace(failed=decision.revision)
    report.problem = report.problem or misstep(recorded, step, wanted, settings, rules)
    if report.problem:
        return
    whole = recorded
    for change in step.changes:
        whole = applied(whole, change, rules)
        if rules.partial:
            yield applied(recorded, change, rules)
    if whole != world:
        yield whole
    happened = list(events(world, rules))
    yield from happened
    yield from faults(world, rules)
    if whole == world and not happened:
        end, problem = ending(world, step, wanted, settings, rules)
        report.ends[end] = report.ends.get(end, 0) + 1
        if problem:
            report.problem = report.problem or f"{problem}\n  {step}\n  in {world}\n  {wanted} {settings} {rules}"


def misstep(world: World, step: Step, wanted: Wanted, settings: Settings, rules: Rules) -> str:
    """What any change of a step breaks, alone or after those before it; empty where the step is sound."""
    together = world
    for change in step.changes:
        alone, after = applied(world, change, rules), applied(together, change, rules)
        problem = breach(world, change, alone, wanted, settings, rules)
        problem = problem or breach(together, change, after, wanted, settings, rules)
        if problem:
            return f"{problem}\n  by {change}\n  of {step}\n  in {world}\n  {wanted} {settings} {rules}"
        together = after
    return ""


def ending(world: World, step: Step, wanted: Wanted, settings: Settings, rules: Rules) -> tuple[str, str]:
    """How a rollout ended, and what is wrong with that."""
    goal = world.named(wanted.revision)
    if step.phase is Phase.COMPLETE:
        whole = all(goal.group(r).ready == (wanted.count(r) or 0) for r in ENGINES)
        rest = [s.name for s in world.sets if s.name != wanted.revision and not s.empty]
        bad = not whole or rest or world.traffic != (wanted.revision,)
        return "complete", "complete, but it is not" if bad else ""
    least = [(wanted.count(r) or 0) - settings.max_unavailable for r in ENGINES]
    serves = all(world.serving(r) >= n for r, n in zip(ENGINES, least, strict=True))
    if any(isinstance(d, (Insufficient, Wait)) and d.reason is Reason.INSUFFICIENT_CAPACITY for d in step.decisions):
        fine = serves or world.deaths != rules.deaths or may_stop(wanted, settings, rules)
        return "insufficient", "" if fine else "below the budget where it says that devices are missing"
    if step.phase is Phase.STOPPED:
        if goal.verification is FAILED and wanted.revision in world.traffic:
            return "stopped", "a set that failed has traffic"
        bad = not serves and world.deaths == rules.deaths and not may_stop(wanted, settings, rules)
        return "stopped", "below the budget where it has stopped" if bad else ""
    if world.traffic == (wanted.revision,) and all(s.empty for s in world.sets if s.name != wanted.revision):
        lost = world.deaths != rules.deaths or goal.verification is FAILED
        bad = not serves and not lost and not may_stop(wanted, settings, rules)
        return "alone", "below the budget after the last of the old set was given up" if bad else ""
    return "stuck", "waits for what cannot happen"
