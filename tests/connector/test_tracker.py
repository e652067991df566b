"""What the scheduler knows of the workers' tier: reports of several ranks made one, and the parts that all hold."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.case_files import read

from kvserving_connector.core.ranges import Range, of, positions
from kvserving_connector.core.reports import Quorum, ReadyReport, SaveReport, WorkerReport
from kvserving_connector.core.tracker import PrefixTracker

CASES = read("tracker")


def ranges(wanted: list[list[int]]) -> tuple[Range, ...]:
    return tuple((first, count) for first, count in wanted)


@pytest.mark.parametrize("index", [0, 1])
def test_t10_what_is_saved_is_what_all_ranks_say(index: int) -> None:
    reports = CASES["T10"]["input"]["variants"][index]["reports"]
    quorum: Quorum[SaveReport] = Quorum(CASES["T10"]["input"]["tp"])
    merged = [quorum.add(1, SaveReport(ranges(one["saved"]))) for one in reports if one is not None]
    found = [one.held for one in merged if one is not None]
    expected = ranges(CASES["T10"]["expected"]["variants"][index]["tracked_ranges"])
    assert found == ([expected] if expected else [])
    assert (1 in quorum) == (not found)


def test_t11_what_any_rank_failed_to_load_has_failed() -> None:
    case = CASES["T11"]
    first, second = (WorkerReport(1, 64, failed={"r": ranges(one["failed"])}) for one in case["input"]["reports"])
    dropped = case["expected"]["dropped_blocks"]
    assert first.merge(second).failed == second.merge(first).failed == {"r": ((dropped[0], len(dropped)),)}


def test_t17_what_is_ready_is_the_least_of_all_ranks_for_each_request() -> None:
    variant = CASES["T17"]["input"]["variants"][0]
    first, second = (
        WorkerReport(1, 64, ready={number: ReadyReport(tokens, tokens) for number, tokens in enumerate(rank)})
        for rank in variant["ranks"]
    )
    merged = first.merge(second)
    assert [merged.ready[number].tokens for number in range(3)] == CASES["T17"]["expected"]["variants"][0]["reduced"]
    assert [merged.ready[number].most for number in range(3)] == [512, 512, 128]


def test_t17_a_rank_that_has_not_answered_keeps_the_others_answer_open() -> None:
    quorum: Quorum[ReadyReport] = Quorum(2)
    assert quorum.add(1, ReadyReport(512, 512)) is None
    assert quorum.add(2, ReadyReport(256, 256)) is None
    assert quorum.add(1, ReadyReport(0, 0)) == ReadyReport(0, 512, 2)
    quorum.drop(2)
    assert len(quorum) == 0


_ranges = st.sets(st.integers(0, 8)).map(of)
_reports = st.lists(
    st.builds(
        WorkerReport,
        step=st.integers(1, 3),
        capacity=st.integers(1, 9),
        saves=st.dictionaries(st.integers(0, 2), st.builds(SaveReport, held=_ranges, present=_ranges)),
        failed=st.dictionaries(st.sampled_from("ab"), _ranges),
        lost=st.sets(st.sampled_from([b"x", b"y"])),
    ),
    min_size=3,
    max_size=3,
)


@given(_reports)
def test_reports_are_the_same_in_whatever_order_they_are_merged(reports: list[WorkerReport]) -> None:
    one, two, three = reports
    assert one.merge(two).merge(three) == one.merge(two.merge(three)) == three.merge(one.merge(two))
    merged = one.merge(two).merge(three)
    assert merged.reporters == 3
    assert merged.step == min(each.step for each in reports)
    assert merged.capacity == min(each.capacity for each in reports)
    assert merged.lost == one.lost | two.lost | three.lost
    for number, save in merged.saves.items():
        said = [each.saves[number] for each in reports if number in each.saves]
        assert save.reporters == len(said)
        assert set(positions(save.held)) == set.intersection(*[set(positions(each.held)) for each in said])


_KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
_CALLS = st.lists(
    st.tuples(st.sampled_from(["add", "drop", "touch", "resize", "clear"]), st.lists(_KEYS), st.integers(1, 9))
)


@given(_CALLS)
def test_the_tracker_is_a_bounded_list_of_parts_in_order_of_use(calls: list[tuple[str, list[bytes], int]]) -> None:
    tracker, model, capacity = PrefixTracker(6), OrderedDict[bytes, int](), 6
    for call, keys, number in calls:
        if call == "add":
            for key in keys:
                tracker.add(key, number)
                model.pop(key, None)
                model[key] = number
                while sum(model.values()) > capacity:
                    model.popitem(last=False)
        elif call == "drop":
            assert tracker.drop(keys) == sum(model.pop(key, None) is not None for key in keys)
        elif call == "touch":
            tracker.touch(keys)
            for key in keys:
                if key in model:
                    model.move_to_end(key)
        elif call == "resize":
            tracker.resize(number)
            capacity = number
            while sum(model.values()) > capacity:
                model.popitem(last=False)
        else:
            tracker.clear()
            model.clear()
        assert tracker.keys() == frozenset(model)
        assert tracker.used == sum(model.values()) <= tracker.capacity == capacity
        assert len(tracker) == len(model)
        assert all(tracker.holds(key) == (key in model) for key in (b"a", b"b", b"c", b"d", b"e"))


def test_a_tier_that_others_write_to_is_not_tracked() -> None:
    tracker = PrefixTracker(64, exclusive=False)
    tracker.add(b"a", 1)
    assert not tracker.holds(b"a")
    assert tracker.keys() == frozenset()


def test_a_part_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="a part of 0 slots"):
        PrefixTracker(64).add(b"a", 0)
