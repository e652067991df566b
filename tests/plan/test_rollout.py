"""Rollouts step by step, as a user would tell them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.plan.rollout_world import NONE, Group, Rules, Set, World, applied, observe, running
from tests.plan.support import pair, serving

from kvserving_operator.plan.rollout import next_step
from kvserving_operator.plan.rollout_progress import gains, reached
from kvserving_operator.plan.rollout_types import (
    Drain,
    Fail,
    Insufficient,
    Observation,
    Phase,
    Pods,
    Remove,
    RevisionSet,
    Scale,
    Settings,
    Step,
    Switch,
    Verification,
    Wait,
    Wanted,
)
from kvserving_operator.reasons import Reason

DEFAULT = Settings()
VERIFIED, FAILED, UNKNOWN = Verification.VERIFIED, Verification.FAILED, Verification.UNKNOWN


def world(*sets: Set, traffic: tuple[str, ...] = ("a",), failed: str | None = None) -> World:
    return World(sets, traffic, failed)


def step(of: World, wanted: Wanted, settings: Settings = DEFAULT, **observed: object) -> Step:
    return next_step(replace(observe(of, Rules()), **observed), wanted, settings)  # type: ignore[arg-type]


def settle(of: World) -> World:
    """Every pod became ready or finished, and every set that is whole is verified."""
    for s in of.sets:
        settled = s
        for role in s.roles:
            pods = s.group(role)
            settled = settled.put(role, Group(pods.wanted, 0, pods.wanted))
        of = of.with_set(settled._replace(verification=VERIFIED if settled.whole else settled.verification))
    return of


def trail(of: World, wanted: Wanted, settings: Settings = DEFAULT) -> list[tuple[object, ...]]:
    """The changes of each step until there are none, in a cluster where nothing takes time."""
    steps: list[tuple[object, ...]] = []
    for _ in range(60):
        planned = step(of, wanted, settings)
        if not planned.changes:
            assert planned.phase is Phase.COMPLETE
            return steps
        steps.append(tuple(planned.changes))
        for change in planned.changes:
            of = applied(of, change, Rules())
        of = settle(of)
    raise AssertionError("no end")


def kinds(planned: Step) -> list[type]:
    return [type(decision) for decision in planned.decisions]


def test_a_first_set_comes_up_whole_and_gets_traffic_once_it_serves() -> None:
    empty = world(traffic=())
    assert step(empty, Wanted("a", 3, 2, 2)).changes == (
        Scale("a", "prefill", 2),
        Scale("a", "decode", 3),
        Scale("a", "router", 1),
    )
    up = world(Set("a", Group(2, 1, 1), Group(3, 2, 1), Group(1, 0, 1)), traffic=())
    assert step(up, Wanted("a", 3, 2, 2)).changes == (Switch(("a",)),)


def test_two_pairs_are_exchanged_one_by_one() -> None:
    assert trail(world(running("a", 2, 2), Set("b")), Wanted("b", 2, 2)) == [
        (Scale("b", "prefill", 1), Scale("b", "decode", 1)),
        (Switch(("b", "a")),),
        (Drain("a", "prefill", 1), Drain("a", "decode", 1)),
        (Scale("b", "prefill", 2), Scale("b", "decode", 2)),
        (Switch(("b",)),),
        (Drain("a", "prefill", 0), Drain("a", "decode", 0)),
        (Remove("a"),),
    ]


def test_traffic_waits_for_the_proof() -> None:
    new = Set("b", Group(1, 0, 1), Group(1, 0, 1), Group(1, 0, 1))
    planned = step(world(running("a", 2, 2, 2), new), Wanted("b", 2, 2, 2))
    message = "the transfer of revision b is not verified yet"
    assert planned.decisions == (Wait("verified", Reason.VERIFYING, message, bounded=True),)
    proven = new._replace(verification=VERIFIED)
    assert step(world(running("a", 2, 2, 2), proven), Wanted("b", 2, 2, 2)).changes == (Switch(("b", "a")),)


def test_a_proof_without_a_ready_router_gives_no_traffic() -> None:
    new = Set("b", Group(1, 0, 1), Group(1, 0, 1), Group(1, 1, 0), VERIFIED)
    assert not step(world(running("a", 2, 2, 2), new), Wanted("b", 2, 2, 2)).changes


def test_engines_of_a_set_without_traffic_stay_until_its_routers_have_finished() -> None:
    new, wanted = running("b", 2, 2, 2), Wanted("b", 2, 2, 2)
    old = running("a", 1, 1, 1)
    assert step(world(old, new, traffic=("b",)), wanted).changes == (Drain("a", "router", 0),)
    finishing = old._replace(router=Group(0, 0, 0, 1))
    assert kinds(step(world(finishing, new, traffic=("b",)), wanted)) == [Wait]
    finished = old._replace(router=NONE)
    gone = step(world(finished, new, traffic=("b",)), wanted).changes
    assert gone == (Drain("a", "prefill", 0), Drain("a", "decode", 0))


def test_routers_are_ten_in_all_and_follow_the_decodes() -> None:
    shared = world(running("a", 4, 4, 2), running("b", 1, 1, 1), traffic=("b", "a"))
    changes = step(shared, Wanted("b", 4, 4, 2)).changes
    routers = {c.revision: c.count for c in changes if isinstance(c, Scale) and c.role == "router"}
    assert sum(routers.values()) == 10
    assert routers["a"] == 8


def test_a_change_of_numbers_in_a_rollout_never_raises_the_old_set() -> None:
    steps = trail(world(running("a", 1, 1), Set("b")), Wanted("b", 3, 3))
    assert not [c for changes in steps for c in changes if isinstance(c, Scale) and c.revision == "a"]


def test_too_few_devices_are_named_with_the_sum_and_nothing_changes() -> None:
    planned = step(world(running("a", 2, 2), Set("b")), Wanted("b", 2, 2, None, 4, 8), free=9)
    assert kinds(planned) == [Insufficient]
    assert isinstance(short := planned.decisions[0], Insufficient)
    assert (short.needed, short.free, short.reason) == (12, 9, Reason.INSUFFICIENT_CAPACITY)
    assert "4 for a prefill + 8 for a decode = 12" in short.message
    assert "Recreate" in short.message


def test_pods_without_a_node_are_a_lack_of_capacity_too() -> None:
    old, new = observe(world(running("a", 2, 2), Set("b")), Rules()).sets
    new = replace(new, prefill=Pods(1, 1, 1), decode=Pods(1, 1, 0, 0, 1))
    planned = next_step(Observation((old, new), ("a",)), Wanted("b", 2, 2), DEFAULT)
    assert [d.reason for d in planned.decisions if isinstance(d, Wait)] == [Reason.INSUFFICIENT_CAPACITY]


def test_recreate_stops_the_old_set_routers_first_and_then_starts_the_new_one() -> None:
    recreate = Settings(strategy="Recreate")
    assert trail(world(running("a", 2, 2, 2), Set("b", router=NONE)), Wanted("b", 2, 2, 2), recreate) == [
        (Drain("a", "router", 0),),
        (Drain("a", "prefill", 0), Drain("a", "decode", 0)),
        (Scale("b", "prefill", 2), Scale("b", "decode", 2), Scale("b", "router", 1)),
        (Switch(("b",)),),
        (Scale("b", "router", 2), Remove("a")),
    ]


def test_recreate_is_refused_where_the_new_set_could_never_fit() -> None:
    planned = step(
        world(running("a", 1, 1), Set("b")), Wanted("b", 1, 1, None, 8, 8), Settings(strategy="Recreate"), free=0
    )
    assert kinds(planned) == [Insufficient]


def test_paused_holds_the_rollout_and_follows_the_numbers() -> None:
    paused = Settings(paused=True)
    half = world(running("a", 2, 2), running("b", 1, 1), traffic=("b", "a"))
    assert step(half, Wanted("b", 3, 3), paused) == Step(
        Phase.PAUSED,
        (Wait("resumed", Reason.ROLLING_OUT, "spec.rollout.paused is set: set it to false to go on"),),
    )
    assert step(half, Wanted("b", 4, 4), paused).changes == (Scale("b", "prefill", 2), Scale("b", "decode", 2))
    before = world(running("a", 2, 2), Set("b"))
    assert step(before, Wanted("b", 4, 4), paused).changes == (Scale("a", "prefill", 4), Scale("a", "decode", 4))


def test_a_set_that_cannot_verify_leaves_the_old_one_as_it_is() -> None:
    new = running("b", 1, 1)._replace(verification=FAILED)
    planned = step(world(running("a", 2, 2), new), Wanted("b", 2, 2))
    assert planned.phase is Phase.STOPPED
    assert kinds(planned) == [Fail, Wait]
    again = step(world(running("a", 2, 2), new, failed="b"), Wanted("b", 2, 2))
    assert kinds(again) == [Wait]


def test_traffic_returns_at_once_and_the_old_set_gets_its_pods_back() -> None:
    old, new, wanted = running("a", 1, 1), running("b", 3, 3)._replace(verification=FAILED), Wanted("b", 3, 3)
    first = step(world(old, new, traffic=("b", "a")), wanted)
    assert kinds(first) == [Fail, Switch]
    assert first.changes == (Switch(("a",)),)
    then = step(world(old, new, failed="b"), wanted)
    assert set(then.changes) == {Drain("b", "prefill", 1), Drain("b", "decode", 1)}
    freed = running("b", 1, 1)._replace(verification=FAILED)
    assert step(world(old, freed, failed="b"), wanted).changes == (Scale("a", "prefill", 3), Scale("a", "decode", 3))


def test_a_recorded_failure_holds_though_the_set_verifies_later() -> None:
    planned = step(world(running("a", 2, 2), running("b", 1, 1), failed="b"), Wanted("b", 2, 2))
    assert not planned.changes
    assert planned.phase is Phase.STOPPED


@pytest.mark.parametrize(("waited", "phase"), [(3600.0, Phase.PROGRESSING), (3601.0, Phase.STOPPED)])
def test_the_deadline_ends_a_rollout_without_progress(waited: float, phase: Phase) -> None:
    new = Set("b", Group(1, 1, 0), Group(1, 0, 1))
    planned = step(world(running("a", 2, 2), new), Wanted("b", 2, 2), now=waited)
    assert planned.phase is phase
    if phase is Phase.STOPPED:
        assert isinstance(planned.decisions[0], Fail)
        assert "no progress for 3600 s" in planned.decisions[0].message
        assert "0 of 1 prefill" in planned.decisions[0].message


def test_a_verified_set_keeps_its_traffic_when_the_deadline_passes() -> None:
    new = Set("b", Group(2, 1, 1), Group(2, 1, 1), None, VERIFIED)
    planned = step(world(running("a", 2, 2), new, traffic=("b", "a")), Wanted("b", 3, 3), now=9999.0)
    assert not [c for c in planned.changes if isinstance(c, Switch)]


def test_a_return_to_the_former_revision_after_a_failure_retires_the_failed_set() -> None:
    new = running("b", 1, 1)._replace(verification=FAILED)
    planned = step(world(running("a", 2, 2), new, failed="b"), Wanted("a", 2, 2))
    assert planned.changes == (Drain("b", "prefill", 0), Drain("b", "decode", 0))


def test_sets_without_pods_are_removed() -> None:
    sets = [Set("a"), Set("d", verification=FAILED), running("e", 1, 1)]
    planned = step(world(*sets, traffic=("e",)), Wanted("e", 1, 1))
    assert planned.changes == (Remove("d"), Remove("a"))


@pytest.mark.parametrize("counts", [(0, 0), (0, 2), (2, 0)])
def test_to_zero_and_back(counts: tuple[int, int]) -> None:
    four = world(running("a", 4, 4, 2))
    down = step(four, Wanted("a", counts[1], counts[0], 2))
    lowered = {(c.role, c.count) for c in down.changes if isinstance(c, Drain)}
    assert lowered == set(zip(("prefill", "decode"), counts, strict=True))
    halfway = world(Set("a", Group(0, 0, 0, 4), Group(0, 0, 0, 4), Group(2, 0, 2)))
    up = step(halfway, Wanted("a", 4, 4, 2))
    assert up.changes == (Scale("a", "prefill", 4), Scale("a", "decode", 4)), "pods that drain hold nobody up"
    assert trail(settle(halfway), Wanted("a", 4, 4, 2)) == [up.changes]


def test_aggregated_sets_have_nothing_to_verify() -> None:
    def decodes(name: str, number: int, count: int) -> RevisionSet:
        return RevisionSet(name, number, Pods(count, count, count))

    wanted = Wanted("b", 2)
    first = next_step(Observation((decodes("a", 1, 2),), ("a",)), wanted, DEFAULT)
    assert first.changes == (Scale("b", "decode", 1),)
    then = next_step(Observation((decodes("a", 1, 2), decodes("b", 2, 1)), ("a",)), wanted, DEFAULT)
    assert then.changes == (Switch(("b", "a")),)


def test_a_lost_record_of_the_traffic_is_made_again_from_what_serves() -> None:
    assert step(world(running("a", 2, 2), Set("b"), traffic=()), Wanted("b", 2, 2)).changes == (Switch(("a",)),)


def test_progress_is_what_the_goal_gains_and_the_others_lose() -> None:
    seen = observe(world(running("a", 2, 2), Set("b", Group(1, 1, 0), Group(1, 0, 1))), Rules())
    before = reached(seen, "b")
    assert not gains(before, reached(replace(seen, now=5.0), "b"))[1]
    up = observe(world(running("a", 2, 2), Set("b", Group(1, 0, 1), Group(1, 0, 1))), Rules())
    assert gains(before, reached(up, "b"))[1]
    best, _ = gains(before, reached(up, "b"))
    assert not gains(best, before)[1]
    assert not gains(best, reached(up, "b"))[1], "what was lost and comes back"
    assert gains(best, reached(replace(up, traffic=("b", "a")), "b"))[1]
    assert gains(best, reached(observe(world(running("a", 1, 2), Set("b")), Rules()), "b"))[1]
    assert not gains(best, reached(observe(world(running("a", 3, 2), Set("b")), Rules()), "b"))[1]


def test_groups_that_were_not_made_yet_go_though_one_alone_serves() -> None:
    """Somebody raised the number of a LeaderWorkerSet, and its controller has not followed."""
    one = Pods(wanted=1, existing=1, ready=1)
    of = RevisionSet("a", 1, decode=replace(one, wanted=5), prefill=one, router=one, verification=VERIFIED)
    groups = Settings(unready_first=False)
    assert next_step(Observation((of,), ("a",)), Wanted("a", 1, 1, 1), groups).changes == (Drain("a", "decode", 1),)
    made = replace(of, decode=Pods(wanted=5, existing=5, ready=1))
    assert next_step(Observation((made,), ("a",)), Wanted("a", 1, 1, 1), groups).changes == (), (
        "which is the ready one?"
    )


def test_changes_that_are_refused_are_no_movement_and_the_failure_names_why() -> None:
    of = world(running("a", 2, 2), Set("b"))
    planned = step(of, Wanted("b", 2, 2), now=3601.0, refused="Deployment b: taken")
    assert planned.phase is Phase.STOPPED
    assert isinstance(planned.decisions[0], Fail)
    assert planned.decisions[0].message.endswith("no progress for 3600 s: Deployment b: taken")
    assert step(of, Wanted("b", 2, 2), now=3601.0).phase is Phase.PROGRESSING
    assert step(of, Wanted("b", 2, 2), now=3600.0, refused="Deployment b: taken").phase is Phase.PROGRESSING


def test_settings_come_from_the_spec() -> None:
    rollout = {"strategy": "Recreate", "maxUnavailable": 2, "paused": True, "progressDeadline": "5m"}
    assert Settings.of(serving(pair(rollout=rollout)).spec.rollout) == Settings("Recreate", 1, 2, True, 300.0)


ZERO = Set("a", NONE, NONE, NONE, VERIFIED)


@pytest.mark.parametrize("settings", [DEFAULT, Settings(strategy="Recreate")], ids=["paired", "recreate"])
@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (0, 1)])
def test_at_zero_the_traffic_stays_with_the_set_that_had_it(settings: Settings, counts: tuple[int, int]) -> None:
    wanted = Wanted("b", counts[1], counts[0], 1)
    of = world(running("a", 1, 1, 1), running("b", 1, 1, 1)._replace(verification=UNKNOWN))
    for _ in range(10):
        planned = step(of, wanted, settings, now=1e9)
        assert not [d for d in planned.decisions if isinstance(d, (Switch, Remove, Fail))]
        for change in planned.changes:
            of = applied(of, change, Rules())
        of = settle(of)
    assert planned.phase is Phase.PAUSED
    assert [d.reason for d in planned.decisions if isinstance(d, Wait)] == [Reason.SUSPENDED]
    assert of.named("a").empty
    # One is asked for again: what is not proven comes up without traffic, and gets it with its proof.
    back = step(of, Wanted("b", 1, 1, 1), settings)
    assert {type(c) for c in back.changes} == {Scale}
    assert {c.revision for c in back.changes if isinstance(c, Scale)} == {"b"}
    up = of.with_set(running("b", 1, 1, 1))
    assert step(up.with_set(up.named("b")._replace(verification=UNKNOWN)), Wanted("b", 1, 1, 1), settings).changes == ()
    assert step(up, Wanted("b", 1, 1, 1), settings).changes == (Switch(("b",)),)


@pytest.mark.parametrize("settings", [DEFAULT, Settings(strategy="Recreate")], ids=["paired", "recreate"])
def test_a_failure_holds_through_zero_and_what_served_comes_back(settings: Settings) -> None:
    failed = running("b", 1, 1, 1)._replace(verification=FAILED)
    of = world(running("a", 2, 2, 1), failed, failed="b")
    for count in (0, 2):
        wanted = Wanted("b", count, count, 1)
        for _ in range(12):
            planned = step(of, wanted, settings)
            assert planned.phase is Phase.STOPPED
            assert not [c for c in planned.changes if isinstance(c, (Switch, Remove))]
            for change in planned.changes:
                of = applied(of, change, Rules())
            of = settle(of)
            of = of.with_set(of.named("b")._replace(verification=FAILED))
        assert (of.named("a").prefill.ready, of.named("a").decode.ready) == (count, count)
    assert of.traffic == ("a",)


def test_a_recreation_that_fails_gives_way_to_what_served_before() -> None:
    recreate, wanted = Settings(strategy="Recreate"), Wanted("b", 2, 2)
    of = world(ZERO._replace(router=None), running("b", 2, 2)._replace(verification=FAILED))
    first = step(of, wanted, recreate)
    assert kinds(first) == [Fail, Drain, Drain]
    assert {(c.revision, c.count) for c in first.changes if isinstance(c, Drain)} == {("b", 0)}
    gone = world(ZERO._replace(router=None), Set("b", verification=FAILED), failed="b")
    assert step(gone, wanted, recreate).changes == (Scale("a", "prefill", 2), Scale("a", "decode", 2))


def test_paused_at_zero_and_back_the_set_with_traffic_gets_the_numbers() -> None:
    paused = Settings(paused=True)
    down = step(world(running("a", 2, 2), running("b", 1, 1)), Wanted("b", 0, 0), paused)
    assert {(c.revision, c.count) for c in down.changes if isinstance(c, Drain)} == {("a", 0)}
    back = step(world(ZERO._replace(router=None), Set("b")), Wanted("b", 2, 2), paused)
    assert back.changes == (Scale("a", "prefill", 2), Scale("a", "decode", 2))
