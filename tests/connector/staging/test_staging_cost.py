"""The choice between both ways follows what is measured."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_connector.core.staging_cost import (
    EXPLORE_AT_MOST,
    EXPLORE_EVERY,
    EXPLORE_FIRST,
    MIB,
    PRIOR_DIRECT,
    CostBook,
    Estimate,
    Sample,
    Way,
)

SIZE = 1180 * 10**6


def test_before_measurements_scattered_blocks_are_staged_and_adjacent_ones_are_not() -> None:
    book = CostBook()
    scattered, adjacent = book.choose(SIZE, 18_000), book.choose(SIZE, 36)
    assert scattered.way is Way.STAGED
    assert scattered.direct_seconds > 8 * scattered.staged_seconds
    assert adjacent.way is Way.DIRECT
    assert adjacent.staged_seconds < 1.5 * adjacent.direct_seconds


def test_an_estimate_finds_what_transfers_cost() -> None:
    estimate = Estimate(PRIOR_DIRECT)
    for turn in range(200):
        size, descriptors = (1 + turn % 7) * 100 * MIB, 1 + (turn * 613) % 4000
        estimate.observe(size, descriptors, 0.004 + 2e-5 * size / MIB + 40e-6 * descriptors)
    for size, descriptors in ((150 * MIB, 10), (650 * MIB, 3500)):
        truth = 0.004 + 2e-5 * size / MIB + 40e-6 * descriptors
        assert estimate.seconds(size, descriptors) == pytest.approx(truth, rel=0.15)


def test_what_is_measured_turns_the_choice_both_ways() -> None:
    book = CostBook()
    for _ in range(30):
        book.observe(Sample(Way.STAGED, SIZE, 1, 0.5))
        book.observe(Sample(Way.DIRECT, SIZE, 18_000, 0.05))
    assert book.choose(SIZE, 18_000).way is Way.DIRECT
    for _ in range(300):
        book.observe(Sample(Way.STAGED, SIZE, 1, 0.01))
    assert book.choose(SIZE, 18_000).way is Way.STAGED


def test_one_stall_is_no_trend() -> None:
    book = CostBook()
    for _ in range(20):
        book.observe(Sample(Way.STAGED, SIZE, 1, 0.009))
        book.observe(Sample(Way.DIRECT, SIZE, 18_000, 0.093))
    book.observe(Sample(Way.STAGED, SIZE, 1, 30.0))
    assert book.choose(SIZE, 18_000).way is Way.STAGED


def test_once_in_a_while_the_other_way_is_taken_to_measure_it_but_not_at_any_price() -> None:
    book = CostBook()
    near = [book.choose(SIZE, 2_000) for _ in range(20 * EXPLORE_EVERY)]
    at = [number for number, choice in enumerate(near, 1) if choice.measuring]
    assert at[0] == EXPLORE_FIRST
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == gaps[-2] == EXPLORE_EVERY
    assert all((choice.way is Way.DIRECT) is choice.measuring for choice in near)
    assert near[0].direct_seconds < EXPLORE_AT_MOST * near[0].staged_seconds
    book = CostBook()
    assert not any(book.choose(SIZE, 60_000).measuring for _ in range(3 * EXPLORE_EVERY))


def test_a_slow_first_read_rules_staging_out_for_a_few_decisions_only() -> None:
    book = CostBook()
    for _ in range(4):
        book.observe(Sample(Way.STAGED, SIZE, 1, 0.3))
        book.observe(Sample(Way.DIRECT, SIZE, 18_000, 0.093))
    assert book.choose(SIZE, 18_000).way is Way.DIRECT
    for _ in range(3 * EXPLORE_EVERY):
        way = book.choose(SIZE, 18_000).way
        staged = way is Way.STAGED
        book.observe(Sample(way, SIZE, 1 if staged else 18_000, 0.006 if staged else 0.093))
    assert book.choose(SIZE, 18_000).way is Way.STAGED


@given(
    st.lists(st.tuples(st.integers(1, 2**36), st.integers(1, 10**6), st.floats(0, 1e6, allow_nan=False)), max_size=60)
)
def test_an_estimate_stays_a_duration_whatever_is_reported(samples: list[tuple[int, int, float]]) -> None:
    estimate = Estimate(PRIOR_DIRECT)
    for size, descriptors, seconds in samples:
        estimate.observe(size, descriptors, seconds)
        assert 0 < estimate.seconds(size, descriptors) < float("inf")


@pytest.mark.parametrize(
    ("size", "descriptors", "seconds"), [(0, 1, 1.0), (1, 0, 1.0), (1, 1, -1.0), (1, 1, float("nan"))]
)
def test_what_no_transfer_has_is_refused(size: int, descriptors: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="no transfer"):
        Estimate(PRIOR_DIRECT).observe(size, descriptors, seconds)
