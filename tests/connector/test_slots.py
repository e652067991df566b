"""L1 of one rank: no slot is of two parts, and no promise made before a part was dropped is broken by an eviction."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_connector.core.slots import SlotPool

CASE = Path(__file__).parents[1] / "cases/tracker/t12-bounded-by-l1.json"


def put(pool: SlotPool, *keys: bytes, count: int = 1) -> None:
    for each in keys:
        assert pool.reserve(each, count) is not None
        pool.commit(each)


class Scheduler:
    """What a scheduler promises from: reports reach it late, and what it says reaches the rank later still."""

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool
        self.tracked: dict[bytes, None] = {}
        self.applied = 0
        self.step = 0
        self.reports: deque[tuple[int, tuple[bytes, ...], list[bytes]]] = deque()
        self.promises = 0

    def run(self, saves: list[bytes], loads: list[bytes], delay: int = 1) -> None:
        """One step: the scheduler promises ``loads`` it tracks; the rank pins them, applies, saves and reports."""
        while len(self.reports) >= delay:
            self.applied, lost, present = self.reports.popleft()
            # A part may be saved and leave in one step: the loss is the later news.
            self.tracked.update(dict.fromkeys(present))
            for each in lost:
                self.tracked.pop(each, None)
        promised = [each for each in loads if each in self.tracked]
        applied = self.applied
        for each in promised:
            assert self.pool.get(each) is not None, "a promise is false"
            self.pool.pin(each)
            self.promises += 1
        self.pool.applied(applied)
        present = [each for each in saves if self._save(each)]
        for each in promised:
            assert self.pool.get(each) is not None, "a load lost its slots"
            self.pool.unpin(each)
        self.pool.touch(promised)
        self.step += 1
        self.reports.append((self.step, self.pool.announce(self.step), present))
        self.pool.check()

    def _save(self, each: bytes) -> bool:
        if self.pool.revive(each):
            return True
        if self.pool.reserve(each, 1) is None:
            return False
        self.pool.commit(each)
        return True


def test_t12_the_tracker_equals_what_a_bounded_l1_has_and_no_promise_is_false() -> None:
    case = json.loads(CASE.read_text())
    capacity = case["input"]["l1_capacity_blocks"]
    ((_, (first, number)),) = case["input"]["events"]
    blocks = [b"%d" % index for index in range(first, first + number)]
    it = Scheduler(SlotPool(capacity))
    for index, each in enumerate(blocks):
        # The oldest that are tracked, which are about to leave.
        it.run([each], list(it.tracked)[: index % 3])
    for _ in range(3):
        it.run([], blocks)
    assert it.promises > 0
    assert it.tracked.keys() == it.pool.held()
    assert len(it.tracked) <= case["expected"]["tracked_blocks_at_most"]
    assert blocks[-1] in it.tracked


def test_t12_all_blocks_saved_in_one_step_leave_room_for_the_rest_a_step_later() -> None:
    it = Scheduler(SlotPool(64))
    blocks = [b"%d" % index for index in range(80)]
    it.run(blocks, [])
    it.run([], [])
    it.run([], [])
    it.run(blocks[64:], [])
    it.run([], [])
    assert it.tracked.keys() == it.pool.held()
    assert set(blocks[64:]) < it.tracked.keys()


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 30), max_size=6), st.lists(st.integers(0, 30), max_size=6)), max_size=40
    ),
    st.integers(1, 4),
)
def test_t12_no_promise_is_false_however_late_reports_are(steps: list[tuple[list[int], list[int]]], delay: int) -> None:
    it = Scheduler(SlotPool(10, spare=2))
    for saves, loads in steps:
        it.run([b"%d" % each for each in saves], [b"%d" % each for each in loads], delay)
    for _ in range(2 * delay):
        it.run([], [], delay)
    assert it.tracked.keys() == it.pool.held()


def test_t22_thousands_of_distinct_parts_leave_nothing_behind() -> None:
    pool = SlotPool(64)
    for index in range(8000):
        each = b"%d" % index
        while pool.reserve(each, 1) is None:
            pool.announce(index)
            pool.applied(index)
        if index % 7:
            pool.commit(each)
        if index % 5 == 0:
            pool.discard(each)
        elif index % 7 == 0:
            pool.commit(each)
        pool.announce(index)
        sizes = {name: len(value) for name, value in vars(pool).items() if hasattr(value, "__len__")}
        assert len(sizes) >= 4
        assert max(sizes.values()) <= 64, sizes
    assert len(pool) <= 64


def test_slots_of_a_victim_are_reused_only_after_the_scheduler_dropped_it() -> None:
    pool = SlotPool(2, spare=1)
    put(pool, b"a", b"b")
    assert pool.announce(1) == (b"a",)
    assert pool.get(b"a") is not None
    assert pool.reserve(b"c", 1) is None
    pool.applied(0)
    assert pool.reserve(b"c", 1) is None
    pool.applied(1)
    assert pool.get(b"a") is None
    assert pool.reserve(b"c", 1) is not None


def test_a_victim_that_a_load_pinned_in_time_stays_until_it_is_unpinned() -> None:
    pool = SlotPool(2, spare=1)
    put(pool, b"a", b"b")
    pool.announce(1)
    pool.pin(b"a")
    pool.applied(1)
    slots = pool.get(b"a")
    assert slots is not None
    assert pool.reserve(b"c", 1) is None
    pool.unpin(b"a")
    assert pool.reserve(b"c", 1) == slots


def test_a_pinned_victim_does_not_count_as_room_to_come() -> None:
    pool = SlotPool(3, spare=1)
    put(pool, b"a", b"b", b"c")
    assert pool.announce(1) == (b"a",)
    assert pool.announce(2) == ()
    pool.pin(b"a")
    assert pool.announce(3) == (b"b",)


def test_pinned_parts_are_no_victims() -> None:
    pool = SlotPool(3, spare=3)
    put(pool, b"a", b"b", b"c")
    pool.pin(b"a")
    pool.pin(b"b")
    pool.pin(b"b")
    pool.unpin(b"b")
    assert pool.announce(1) == (b"c",)
    pool.unpin(b"a")
    assert pool.announce(2) == (b"a",)
    pool.unpin(b"b")
    assert pool.announce(3) == (b"b",)


def test_a_victim_that_leaves_again_waits_for_its_last_report() -> None:
    pool = SlotPool(2, spare=1)
    put(pool, b"a", b"b")
    pool.announce(1)
    pool.revive(b"a")
    pool.touch([b"b"])
    assert pool.announce(2) == (b"a",)
    pool.applied(1)
    assert pool.get(b"a") is not None
    pool.applied(2)
    assert pool.get(b"a") is None


def test_a_victim_that_was_revived_while_pinned_stays_when_it_is_unpinned_and_announced_again() -> None:
    pool = SlotPool(2, spare=1)
    put(pool, b"a", b"b")
    pool.announce(1)
    pool.pin(b"a")
    pool.applied(1)
    assert pool.revive(b"a")
    pool.unpin(b"a")
    pool.touch([b"b"])
    assert pool.announce(2) == (b"a",)
    pool.pin(b"a")
    pool.unpin(b"a")
    assert pool.get(b"a") is not None


def test_what_found_no_room_once_is_made_room_for_once() -> None:
    pool = SlotPool(4, spare=0)
    put(pool, b"a", b"b", b"c", b"d")
    assert pool.reserve(b"e", 2) is None
    assert pool.announce(1) == (b"a", b"b")
    pool.applied(1)
    put(pool, b"e", count=2)
    assert pool.announce(2) == ()


def test_a_revived_victim_stays_although_its_report_is_applied_and_can_leave_again() -> None:
    pool = SlotPool(2, spare=1)
    put(pool, b"a", b"b")
    pool.announce(1)
    assert pool.revive(b"a")
    assert pool.announce(2) == (b"b",)
    pool.applied(1)
    assert pool.get(b"a") is not None
    assert pool.get(b"b") is not None
    assert pool.revive(b"b")
    assert pool.announce(3) == (b"a",)
    pool.applied(2)
    assert pool.get(b"a") is not None
    pool.applied(3)
    assert pool.get(b"a") is None
    assert not pool.revive(b"a")


def test_the_least_recently_used_leave_first_and_as_many_as_a_part_that_found_no_room_needs() -> None:
    pool = SlotPool(4, spare=0)
    put(pool, b"a", b"b", b"c", b"d")
    pool.touch([b"b", b"unknown", b"a"])
    assert pool.announce(1) == ()
    assert pool.reserve(b"e", 3) is None
    assert pool.announce(2) == (b"c", b"d", b"b")
    pool.applied(2)
    assert pool.reserve(b"e", 3) is not None


def test_a_discarded_part_is_unreadable_at_once_and_reported_unless_it_was_written_again() -> None:
    pool = SlotPool(4, spare=0)
    put(pool, b"a", b"b")
    pool.pin(b"a")
    slots = pool.get(b"a")
    pool.discard(b"a")
    pool.discard(b"b")
    assert pool.get(b"a") is None
    assert pool.reserve(b"a", 1) is None
    put(pool, b"b")
    assert pool.announce(1) == (b"a",)
    assert pool.announce(2) == ()
    assert pool.used == 2
    pool.unpin(b"a")
    assert pool.used == 1
    assert pool.reserve(b"a", 1) == slots


def test_a_part_that_was_never_written_is_not_reported_when_it_is_discarded() -> None:
    pool = SlotPool(4, spare=0)
    pool.reserve(b"a", 4)
    pool.discard(b"a")
    assert pool.announce(1) == ()
    assert pool.used == 0


def test_what_is_being_written_while_all_is_cleared_never_becomes_readable() -> None:
    pool = SlotPool(4, spare=0)
    put(pool, b"a", b"b")
    pool.reserve(b"c", 1)
    pool.pin(b"b")
    pool.clear()
    assert pool.used == 2
    assert pool.get(b"b") is None
    assert not pool.commit(b"c")
    assert pool.get(b"c") is None
    pool.unpin(b"b")
    assert pool.used == 0
    assert pool.announce(1) == ()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SlotPool(0), "^capacity: 0 "),
        (lambda: SlotPool(4, spare=5), "^spare: 5 .* 4 slots"),
        (lambda: SlotPool(4).reserve(b"a", 5), "^count: 5 .* 4"),
        (lambda: SlotPool(4).reserve(b"a", 0), "^count: 0 "),
    ],
)
def test_wrong_numbers_are_named(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_reports_are_numbered_upwards() -> None:
    pool = SlotPool(4)
    pool.announce(3)
    with pytest.raises(ValueError, match=r"^step: 2 "):
        pool.announce(2)
