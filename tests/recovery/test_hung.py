from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_operator.reasons import Reason
from kvserving_operator.recovery.findings import Finding
from kvserving_operator.recovery.hung import LIMITS, Watched, judge, observe
from kvserving_operator.verify.activity import Activity, Core

EVERY = 10.0
PACED = Core(generated=50, prompt=5000, finished=40, prefills=4, prefill_seconds=0.5, computed=5000, deferred=0)
"""An engine that has computed 10,000 tokens per second: a prompt of 262,144 takes 26 s."""


def watch(readings: Iterable[tuple[float, Activity]], *, prefill: bool = False) -> tuple[Watched, float | None]:
    """Return what is known after all readings, and when the engine was found hung for the first time."""
    watched, found = Watched(), None
    for at, seen in readings:
        watched = observe(watched, at, seen, prefill=prefill)
        if found is None and judge("e", watched) is not None:
            found = at
    return watched, found


def still(core: Core, seconds: float, unanswered: float | None = None) -> list[tuple[float, Activity]]:
    """Readings of an engine of which nothing moves."""
    count = int(seconds / EVERY) + 1
    return [(number * EVERY, Activity({"0": core}, unanswered)) for number in range(count)]


def hung_after(core: Core, *, prefill: bool = False, unanswered: float | None = None) -> float | None:
    return watch(still(core, 3600, unanswered), prefill=prefill)[1]


# What an engine shows, and after how many seconds it is found hung: on prefill, on decode. None: never.
STANDING_STILL: dict[str, tuple[Core, float | None, float | None, float | None]] = {
    "nothing to do": (PACED, 0, None, None),
    "nothing to do, without a guard": (PACED, None, None, None),
    "blocks held for a peer, nothing to do": (replace(PACED, usage=0.5), 0, None, None),
    "requests that it has not taken in": (PACED, 3, 60, 60),
    "requests that it has not taken in, blocks held for a peer": (replace(PACED, usage=0.5), 3, 60, 60),
    "waiting although there is room": (replace(PACED, waiting=2), 2, 60, 60),
    "waiting behind blocks that peers have not fetched": (replace(PACED, waiting=2, usage=0.9), 2, None, 300),
    "waiting for their KV": (replace(PACED, waiting=2, deferred=2, usage=0.1), 2, 300, 300),
    "waiting for something that takes no block": (replace(PACED, waiting=1, deferred=1), 1, 300, 300),
    "waiting, of a vLLM that does not say for what": (replace(PACED, waiting=2, deferred=None), 2, 300, 300),
    "the same, blocks held": (replace(PACED, waiting=2, deferred=None, usage=0.1), 2, None, 300),
    "running at a known pace": (replace(PACED, running=1, usage=0.1), 1, 60, 60),
    "running at a pace of 100 tokens per second": (
        replace(PACED, running=1, usage=0.1, prefill_seconds=50), 1, 2630, 2630,
    ),
    "running before any prompt was computed": (Core(running=1, usage=0.1, deferred=0), 1, 300, 300),
    "running prompts that others computed": (
        replace(PACED, running=1, usage=0.1, prefills=5000, computed=5000), 1, 120, 120,
    ),
    "asleep": (replace(PACED, waiting=3, asleep=True), 3, None, None),
    "asleep with a request": (replace(PACED, asleep=True), 3, None, None),
}  # fmt: skip


@pytest.mark.parametrize(("core", "unanswered", "prefill", "decode"), STANDING_STILL.values(), ids=STANDING_STILL)
def test_how_long_an_engine_may_stand_still(
    core: Core, unanswered: float | None, prefill: float | None, decode: float | None
) -> None:
    assert hung_after(core, prefill=True, unanswered=unanswered) == prefill
    assert hung_after(core, prefill=False, unanswered=unanswered) == decode


def test_the_finding_names_the_engine_and_says_what_is_wrong() -> None:
    watched, _ = watch(still(replace(PACED, waiting=2), 60))
    text = "has requests waiting, none running, and computed nothing for 60 s"
    assert judge("qwen-prefill-x", watched) == Finding("qwen-prefill-x", Reason.ENGINE_HUNG, text, idle=True)


def test_a_long_prompt_that_takes_blocks_chunk_by_chunk_is_progress() -> None:
    # Half an hour, a chunk every 50 s, without a token.
    readings = [
        (at * EVERY, Activity({"0": replace(PACED, running=1, usage=0.001 * (at // 5))}, 1)) for at in range(180)
    ]
    assert watch(readings, prefill=True)[1] is None


def test_one_rank_that_stands_still_is_found_beside_one_that_works() -> None:
    def seen(number: int) -> Activity:
        return Activity(
            {"0": replace(PACED, running=1, generated=number), "1": replace(PACED, waiting=1, running=0)}, 2
        )

    assert watch((n * EVERY, seen(n)) for n in range(10))[1] == 60


def test_requests_that_one_rank_computes_are_not_taken_for_requests_that_no_rank_took() -> None:
    readings = [(n * EVERY, Activity({"0": replace(PACED, running=1, generated=n), "1": PACED}, 5)) for n in range(100)]
    assert watch(readings)[1] is None


def test_one_reading_or_a_few_are_no_proof_however_late_they_come() -> None:
    stuck = Activity({"0": replace(PACED, waiting=2)})
    assert watch([(0, stuck), (40, stuck), (80, stuck)])[1] is None
    assert watch([(0, stuck), (40, stuck), (80, stuck), (120, stuck)])[1] == 120


def test_a_gap_between_readings_begins_anew() -> None:
    stuck = Activity({"0": replace(PACED, waiting=2)})
    readings = [(at, stuck) for at in (0.0, 10.0, 20.0, 30.0, 100.0, 110.0, 120.0, 130.0)]
    assert watch(readings)[1] is None


def test_a_restarted_engine_begins_anew() -> None:
    before = [(at * EVERY, Activity({"0": replace(PACED, waiting=2)})) for at in range(6)]
    after = [(at * EVERY, Activity({"0": Core(waiting=2, deferred=0)})) for at in range(6, 12)]
    assert watch(before + after)[1] is None


def test_work_that_goes_and_comes_begins_anew() -> None:
    readings = [(n * EVERY, Activity({"0": PACED}, n % 5)) for n in range(200)]
    assert watch(readings)[1] is None


def test_an_engine_that_moves_again_is_no_longer_found() -> None:
    watched, found = watch(still(replace(PACED, waiting=2), 100))
    assert found == 60
    watched = observe(watched, 110, Activity({"0": replace(PACED, running=2)}), prefill=False)
    assert judge("e", watched) is None


def test_while_blocks_come_and_go_the_longer_time_holds() -> None:
    turns = (replace(PACED, waiting=2), replace(PACED, waiting=2, deferred=1, usage=0.1))
    readings = [(n * EVERY, Activity({"0": turns[n % 2]})) for n in range(100)]
    assert watch(readings)[1] == 300


def test_readings_out_of_order_change_nothing() -> None:
    watched, _ = watch(still(replace(PACED, waiting=2), 50))
    for at in (0.0, 20.0, 50.0):
        assert observe(watched, at, Activity({"0": replace(PACED, running=9)}), prefill=False) is watched


cores = st.builds(
    Core,
    running=st.integers(0, 3),
    waiting=st.integers(0, 3),
    deferred=st.none() | st.integers(0, 3),
    usage=st.sampled_from([0.0, 0.3, 1.0]),
)


@given(
    st.lists(st.tuples(cores, st.integers(0, 3), st.integers(1, 5), st.floats(0.5, 59)), min_size=1, max_size=60),
    st.booleans(),
    st.booleans(),
)
def test_an_engine_that_gets_anything_done_within_every_minute_is_never_found(
    lives: list[tuple[Core, int, int, float]], prefill: bool, restarts: bool
) -> None:
    watched, at, generated = Watched(), 0.0, 0
    for core, unanswered, readings, span in lives:
        # What it shows between two tokens is whatever it may be, for less than a minute, read as often as may be.
        generated = 0 if restarts and generated > 20 else generated + 1
        seen = Activity({"0": replace(core, generated=generated)}, unanswered)
        for number in range(readings):
            watched = observe(watched, at + span * number / readings, seen, prefill=prefill)
            assert judge("e", watched) is None
        at += span


@given(
    st.lists(st.tuples(cores, st.integers(0, 3)), min_size=1, max_size=40),
    st.lists(st.floats(0, 1000), max_size=40),
    st.booleans(),
)
def test_only_the_order_of_time_counts(lives: list[tuple[Core, int]], late: list[float], prefill: bool) -> None:
    readings = [(number * EVERY, Activity({"0": core}, unanswered)) for number, (core, unanswered) in enumerate(lives)]
    disturbed = list(readings)
    for number, at in enumerate(late):
        # One that was sent earlier and comes late.
        place = 1 + number % len(disturbed)
        if at <= max(known for known, _ in disturbed[:place]):
            disturbed.insert(place, (at, Activity({"0": Core(waiting=1)}, 1)))
    assert watch(disturbed, prefill=prefill) == watch(readings, prefill=prefill)


def test_the_times_leave_room_for_a_reading_to_be_missed() -> None:
    assert LIMITS.gap > 3 * EVERY
    assert min(LIMITS.untaken, LIMITS.queued, LIMITS.running) >= LIMITS.readings * EVERY
