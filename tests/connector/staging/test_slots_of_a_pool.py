"""Ranges, headers and slots: nothing is given to two, and what was overwritten can be seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.connector.support import PROBE_PARAMS, handoff

from kvserving_connector.core.params import check_handoff, check_prefill, check_types
from kvserving_connector.core.refusal import Refusal
from kvserving_connector.core.staging import (
    ALIGNMENT,
    HEADER_BYTES,
    STAGED_KEY,
    Headers,
    RangePool,
    Slot,
    is_slot,
    runs,
    slot_bytes,
)

SLOT = Slot(offset=512, generation=7, rows=3, row_bytes=128)
CAPACITY = 64


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_ranges_never_overlap_and_all_come_back(steps: list[tuple[bool, int]]) -> None:
    pool = RangePool(CAPACITY)
    taken: dict[int, int] = {}
    for give, size in steps:
        if give and taken:
            offset = list(taken)[size % len(taken)]
            pool.free(offset)
            del taken[offset]
        elif (found := pool.take(size)) is not None:
            assert found >= 0
            assert found + size <= CAPACITY
            assert all(found + size <= at or at + length <= found for at, length in taken.items())
            taken[found] = size
        else:
            places = sorted((at, at + length) for at, length in taken.items())
            edges = [0, *(edge for place in places for edge in place), CAPACITY]
            assert all(right - left < size for left, right in zip(edges[::2], edges[1::2], strict=True))
        assert pool.used == sum(taken.values())
    for offset in list(taken):
        pool.free(offset)
    assert pool.used == 0
    assert pool.take(CAPACITY) == 0


@pytest.mark.parametrize("size", [0, -1])
def test_a_range_of_nothing_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="cannot be taken"):
        RangePool(8).take(size)


def test_what_was_not_taken_cannot_be_given_back() -> None:
    with pytest.raises(KeyError):
        RangePool(8).free(0)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), max_size=30))
def test_of_slots_that_share_a_byte_only_the_newest_keeps_its_header(places: list[tuple[int, int]]) -> None:
    headers = Headers()
    whole: list[Slot] = []
    for generation, (place, rows) in enumerate(places, start=1):
        slot = Slot(place * ALIGNMENT, generation, rows, 192)
        hit = headers.overwritten_by(slot)
        sharing = [old for old in whole if old.offset < slot.end and slot.offset < old.end]
        assert hit == sorted(old.offset for old in sharing if old.offset != slot.offset)
        whole = [old for old in whole if old not in sharing] + [slot]


def test_a_slot_has_room_for_its_header_and_rows() -> None:
    assert SLOT.rows_offset == 512 + HEADER_BYTES
    assert SLOT.end == 512 + HEADER_BYTES + 3 * 128
    assert slot_bytes(3, 128) == 512
    assert slot_bytes(1, 1) == ALIGNMENT


@pytest.mark.parametrize(("blocks", "count"), [([], 0), ([4], 1), ([4, 5, 6], 1), ([4, 6, 7], 2), ([3, 2, 1], 3)])
def test_adjacent_blocks_are_one_range(blocks: list[int], count: int) -> None:
    assert runs(blocks) == count


def test_a_slot_travels_in_the_parameters() -> None:
    assert Slot.of({STAGED_KEY: SLOT.params()}) == SLOT
    assert Slot.of({}) is None
    assert is_slot(SLOT.params())


@pytest.mark.parametrize(
    "change",
    [
        {"offset": -1},
        {"offset": 2**60},
        {"generation": 2**53},
        {"generation": True},
        {"rows": 0},
        {"rows": 2**40, "row_bytes": 2**40},
        {"row_bytes": 1.5},
        {"more": 1},
    ],
)
def test_a_slot_that_cannot_be_is_malformed(change: dict[str, object]) -> None:
    value = {**SLOT.params(), **change}
    assert not is_slot(value)
    assert check_types({STAGED_KEY: value}) is Refusal.MALFORMED


def test_a_handoff_needs_blocks_or_a_slot() -> None:
    staged = SLOT.params()
    assert check_handoff(handoff(remote_block_ids=[[]], **{STAGED_KEY: staged})) is None
    assert check_handoff(handoff(remote_block_ids=[[]])) is Refusal.INCOMPLETE
    assert check_handoff(handoff(remote_block_ids=[[]], **{STAGED_KEY: None})) is Refusal.INCOMPLETE
    assert check_handoff(handoff(remote_block_ids=[], **{STAGED_KEY: staged})) is Refusal.INCOMPLETE


def test_no_client_names_a_slot_to_prefill() -> None:
    assert check_prefill({**PROBE_PARAMS, STAGED_KEY: SLOT.params()}) is Refusal.WRONG_ROLE
