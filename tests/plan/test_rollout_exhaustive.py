"""Every rollout of up to 6 + 6 pods in every budget: never below, never above, and each path has an end.

By default pods of groups of five and six change by halves; ``KVSERVING_EXHAUSTIVE=1`` lets every pod
go alone in all sizes (600,000 states, some two minutes), and dying pods and late workloads in larger sets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.plan.rollout_explorer import Planner, Report, explore
from tests.plan.rollout_world import DEADLINE, NEW, NONE, OLD, Rules, Set, World, running

from kvserving_operator.plan.rollout import next_step
from kvserving_operator.plan.rollout_types import (
    Change,
    Drain,
    Observation,
    Phase,
    Pods,
    RevisionSet,
    Settings,
    Step,
    Switch,
    Verification,
    Wait,
    Wanted,
)

LARGE = bool(os.environ.get("KVSERVING_EXHAUSTIVE"))
FINE = 6 if LARGE else 4
SMALL = 3 if LARGE else 2

Case = tuple[int, int, int, int]


def budgets(prefill: int, decode: int) -> Iterator[tuple[int, int]]:
    """Every (surge, unavailable); more than the larger role is like the larger role."""
    most = max(prefill, decode) + 1
    yield from ((surge, out) for surge in range(most) for out in range(most) if surge or out)


def cases(largest: int) -> Iterator[Case]:
    for prefill in range(1, largest + 1):
        for decode in range(1, largest + 1):
            yield from ((prefill, decode, *budget) for budget in budgets(prefill, decode))


def rollout(
    case: Case,
    rules: Rules = Rules(),  # noqa: B008
    *,
    planner: Planner = next_step,
    start: tuple[int, int] | None = None,
    routers: int | None = None,
    **settings: object,
) -> Report:
    """Explore the rollout from a running set, of ``start`` where its size is not the wanted one."""
    prefill, decode, surge, unavailable = case
    old = running(OLD, *(start or (prefill, decode)), routers)
    new = Set(NEW, router=None if routers is None else NONE)
    each = int(rules.devices is not None)
    wanted = Wanted(NEW, decode, prefill, routers, each, each)
    chosen = replace(Settings(max_surge=surge, max_unavailable=unavailable, progress_deadline=DEADLINE), **settings)  # type: ignore[arg-type]
    return explore(World((old, new), (OLD,)), wanted, chosen, rules, planner)


def sums(reports: Iterator[Report]) -> tuple[int, dict[str, int]]:
    """States and ends of all; fails at the first problem."""
    states, ends = 0, dict[str, int]()
    for report in reports:
        assert not report.problem, report.problem
        states += report.states
        ends = {end: ends.get(end, 0) + report.ends.get(end, 0) for end in ends | report.ends}
    return states, ends


@pytest.mark.timeout(900)
@pytest.mark.parametrize("prefill", range(1, 7))
def test_every_rollout_keeps_its_budget_and_completes(prefill: int) -> None:
    """Pods become ready one by one or together, in any order; the roles are alike, so decode is the smaller one."""

    def reports() -> Iterator[Report]:
        for decode in range(1, prefill + 1):
            for budget in budgets(prefill, decode):
                yield rollout((prefill, decode, *budget), Rules(coarse=prefill > FINE))

    states, ends = sums(reports())
    assert set(ends) == {"complete"}
    assert states > 20


@pytest.mark.parametrize(
    ("rules", "ends"),
    [
        (Rules(partial=True), {"complete"}),
        (Rules(lag=True, partial=True), {"complete"}),
        (Rules(deaths=2), {"complete"}),
        (Rules(deaths=1, lag=True), {"complete"}),
        (Rules(may_fail=True, partial=True), {"complete", "stopped"}),
        (Rules(may_expire=True), {"complete", "stopped", "alone"}),
        (Rules(may_expire=True, may_fail=True, deaths=1), {"complete", "stopped", "alone"}),
    ],
    ids=["changes-one-by-one", "late", "deaths", "death-and-late", "failing", "never-ready", "everything"],
)
def test_whatever_goes_wrong_the_budget_holds_and_there_is_an_end(rules: Rules, ends: set[str]) -> None:
    assert set(sums(rollout(case, rules) for case in cases(SMALL))[1]) == ends


def test_workloads_that_stop_ready_pods_first_are_given_less_to_stop() -> None:
    rules = Rules(lag=True, any_order=True, may_expire=True)
    states, ends = sums(rollout(case, rules, unready_first=False) for case in cases(SMALL))
    assert ends["complete"]
    assert states > 1000


@pytest.mark.parametrize("told", [True, False], ids=["free-devices-known", "free-devices-unknown"])
@pytest.mark.parametrize("spare", [0, 1, 2, 3])
def test_without_devices_a_rollout_says_so_or_uses_what_may_be_missing(spare: int, told: bool) -> None:
    for case in cases(3 if told else 2):
        prefill, decode, surge, unavailable = case
        report = rollout(case, Rules(devices=prefill + decode + spare, told=told, may_expire=not told))
        assert not report.problem, report.problem
        if told:
            room = unavailable > 0 or (spare >= 2 and surge > 0)
            assert set(report.ends) == {"complete" if room else "insufficient"}, case


def test_dying_pods_on_a_full_cluster() -> None:
    for case in cases(2):
        report = rollout(case, Rules(devices=case[0] + case[1], deaths=1, may_fail=True))
        assert not report.problem, report.problem


def test_routers_follow_and_are_counted_too() -> None:
    states, ends = sums(rollout(case, Rules(coarse=True), routers=2) for case in cases(2))
    assert set(ends) == {"complete"}
    assert states > 10_000


def test_every_change_of_size_during_a_rollout() -> None:
    def reports() -> Iterator[Report]:
        for case in cases(3):
            for start in ((1, 1), (3, 3), (1, 3), (4, 2)):
                yield rollout(case, Rules(), start=start)

    assert set(sums(reports())[1]) == {"complete"}


def test_recreate_ends_and_never_holds_more_than_is_wanted() -> None:
    rules = Rules(may_fail=True, may_expire=True, deaths=1, partial=True)

    def most(observed: Observation, wanted: Wanted, settings: Settings) -> Step:
        # The former set comes back although its last pods may never end.
        leaving = observed.failed is not None
        for role in ("prefill", "decode"):
            pods = [s.pods(role) or Pods() for s in observed.sets]
            assert sum(p.existing - leaving * p.draining for p in pods) <= (wanted.count(role) or 0)
        return next_step(observed, wanted, settings)

    reports = (rollout(case, rules, planner=most, strategy="Recreate") for case in cases(2))
    assert set(sums(reports)[1]) == {"complete", "stopped", "alone"}


def test_a_third_revision_in_the_middle_of_a_rollout() -> None:
    """A served, B was half way when C was asked for: all three are counted together."""

    def reports() -> Iterator[Report]:
        for share in ((1, 1), (2, 1), (2, 2)):
            for proof in Verification:
                traffic = ("b", "a") if proof is Verification.VERIFIED else ("a",)
                for surge, unavailable in budgets(2, 2):
                    first = running("a", 2, 2)
                    second = running("b", *share)._replace(verification=proof)
                    settings = Settings(max_surge=surge, max_unavailable=unavailable, progress_deadline=DEADLINE)
                    yield explore(
                        World((first, second, Set("c")), traffic), Wanted("c", 2, 2), settings, Rules(may_fail=True)
                    )

    assert set(sums(reports())[1]) == {"complete", "stopped"}


# --- planners that are wrong on purpose -------------------------------------


def seen(planner: Planner, change: Callable[[Pods], Pods]) -> Planner:
    """``planner`` with eyes that see other pods."""

    def twin(observed: Observation, wanted: Wanted, settings: Settings) -> Step:
        sets = (replace(s, prefill=change(s.prefill or Pods()), decode=change(s.decode)) for s in observed.sets)
        return planner(replace(observed, sets=tuple(sets)), wanted, settings)

    return twin


def told(planner: Planner, **differences: int) -> Planner:
    """``planner`` with a budget that is off by some pods."""

    def twin(observed: Observation, wanted: Wanted, settings: Settings) -> Step:
        off = {name: getattr(settings, name) + by for name, by in differences.items()}
        return planner(observed, wanted, replace(settings, **off))

    return twin


def said(planner: Planner, change: Callable[[Observation, Change], Change]) -> Planner:
    """``planner`` whose changes are others."""

    def twin(observed: Observation, wanted: Wanted, settings: Settings) -> Step:
        step = planner(observed, wanted, settings)
        changed = tuple(change(observed, d) if d in step.changes else d for d in step.decisions)
        return Step(step.phase, changed)

    return twin


def unverified(observed: Observation, wanted: Wanted, settings: Settings) -> Step:
    def trusted(s: RevisionSet) -> RevisionSet:
        return replace(s, verification=Verification.VERIFIED) if s.verification is Verification.UNKNOWN else s

    return next_step(replace(observed, sets=tuple(map(trusted, observed.sets))), wanted, settings)


def lonely(observed: Observation, change: Change) -> Change:
    return Switch(change.revisions[:1]) if isinstance(change, Switch) else change


def one_more(observed: Observation, change: Change) -> Change:
    if isinstance(change, Drain) and change.count > 1 and change.role != "router":
        return replace(change, count=change.count - 1)
    return change


def half(observed: Observation, change: Change) -> Change:
    return replace(change, count=0) if isinstance(change, Drain) and change.role == "decode" else change


def patient(observed: Observation, wanted: Wanted, settings: Settings) -> Step:
    """Forgets the deadline."""
    return next_step(replace(observed, now=0.0), wanted, settings)


def fickle(observed: Observation, wanted: Wanted, settings: Settings) -> Step:
    """Takes the traffic back as soon as it was given."""
    if len(observed.traffic) > 1:
        return Step(Phase.PROGRESSING, (Switch((OLD,)),))
    return next_step(observed, wanted, settings)


def idle(observed: Observation, wanted: Wanted, settings: Settings) -> Step:
    step = next_step(observed, wanted, settings)
    asleep = Step(Phase.PROGRESSING, tuple(d for d in step.decisions if isinstance(d, Wait)))
    return asleep if observed.traffic == (NEW,) else step


TWINS: dict[str, tuple[Planner, str]] = {
    "one pod above the surge": (told(next_step, max_surge=1), "above"),
    "one pod below the budget": (told(next_step, max_unavailable=1), "below"),
    "drains one more than planned": (said(next_step, one_more), "below"),
    "switches before verified": (unverified, "not verified"),
    "takes starting pods for ready ones": (
        seen(next_step, lambda p: replace(p, ready=p.existing - p.draining)),
        "below",
    ),
    "forgets that draining pods hold devices": (
        seen(next_step, lambda p: replace(p, existing=p.existing - p.draining, draining=0)),
        "above",
    ),
    "leaves the old set with its traffic too early": (said(next_step, lonely), "below"),
    "leaves prefills without a decode": (said(next_step, half), "below"),
    "forgets the deadline": (patient, "waits for what cannot happen"),
    "gives and takes traffic": (fickle, "comes back"),
    "leaves the old set running": (idle, "waits for what cannot happen"),
}


WATCHED = [(1, 1, 1, 0), (2, 2, 1, 0), (2, 1, 1, 1), (3, 3, 1, 0), (3, 2, 2, 1)]


@pytest.mark.parametrize("name", TWINS)
def test_a_planner_that_is_wrong_is_found(name: str) -> None:
    planner, problem = TWINS[name]
    found = [rollout(case, Rules(may_expire=True, deaths=1), planner=planner).problem for case in WATCHED]
    assert any(problem in text for text in found), found


def test_the_planner_itself_passes_what_finds_its_twins() -> None:
    assert not any(rollout(case, Rules(may_expire=True, deaths=1)).problem for case in WATCHED)
