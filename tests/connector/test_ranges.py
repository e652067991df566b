"""Ranges of blocks: sets of positions in one normal form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_connector.core import ranges
from kvserving_connector.core.ranges import Range

sets = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8)


def members(items: list[Range]) -> set[int]:
    return {position for start, count in items for position in range(start, start + count)}


def runs(positions: set[int]) -> tuple[Range, ...]:
    starts = sorted(position for position in positions if position - 1 not in positions)
    ends = sorted(position for position in positions if position + 1 not in positions)
    return tuple((start, end - start + 1) for start, end in zip(starts, ends, strict=True))


@given(sets, sets, sets)
def test_every_operation_is_that_of_sets_and_equal_sets_are_equal_ranges(
    a: list[Range], b: list[Range], c: list[Range]
) -> None:
    assert ranges.normal(a) == runs(members(a))
    assert ranges.union(a, b, c) == runs(members(a) | members(b) | members(c))
    assert ranges.intersection(a, b) == runs(members(a) & members(b))
    assert ranges.difference(a, b) == runs(members(a) - members(b))
    assert list(ranges.positions(a)) == sorted(members(a))
    assert ranges.of(ranges.positions(a)) == ranges.normal(a)


def test_ranges_that_travelled_as_lists_are_taken() -> None:
    assert ranges.normal([[4, 4], [2, 6]]) == ((2, 6),)
    assert ranges.difference([[0, 16]], ((2, 6),)) == ((0, 2), (8, 8))
    assert ranges.union() == ()


@pytest.mark.parametrize("wrong", [(-1, 4), (4, -1)])
def test_a_negative_start_or_count_is_refused(wrong: Range) -> None:
    with pytest.raises(ValueError, match=rf"range \({wrong[0]}, {wrong[1]}\).*neither is negative"):
        ranges.normal([(0, 4), wrong])
