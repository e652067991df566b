"""The choice between both ways follows what is measured."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_connector.core.staging_cost import (
    EXPLORE_AT_MOST,
    EXPLORE_EVERY,
    EXPLORE_FIRST,
    MIB,
    PRIOR_DIRECT,
    PRIOR_MAPPED,
    CostBook,
    Estimate,
    Sample,
    Way,
)

SIZE = 1180 * 10**6


def slower(book: CostBook, size: int, descriptors: int) -> float:
    """How many times as long as staged the direct way is judged to take."""
    return book.estimates[Way.DIRECT].seconds(size, descriptors) / book.estimates[Way.STAGED].seconds(size, 1)


def test_before_measurements_scattered_blocks_are_staged_and_adjacent_ones_are_not() -> None:
    book = CostBook()
    scattered, adjacent = book.choose(SIZE, 18_000), book.choose(SIZE, 36)
    assert scattered.way is Way.STAGED
    assert slower(book, SIZE, 18_000) > 8
    assert adjacent.way is Way.DIRECT
    assert slower(book, SIZE, 36) > 1 / 1.5


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
    ratio = slower(book, SIZE, 2_000)
    near = [book.choose(SIZE, 2_000) for _ in range(60 * EXPLORE_EVERY)]
    at = [number for number, choice in enumerate(near, 1) if choice.measuring]
    assert 1 < ratio < EXPLORE_AT_MOST
    assert at[0] == ceil(EXPLORE_FIRST * ratio)
    gaps = [later - earlier for earlier, later in pairwise(at)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == gaps[-2] == ceil(EXPLORE_EVERY * ratio)
    assert (ratio - 1) / gaps[-1] < 1 / EXPLORE_EVERY, "measuring costs more than its share"
    assert all((choice.way is Way.DIRECT) is choice.measuring for choice in near)
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


SMALL, LARGE = 75 * 10**6, 2360 * 10**6


def measuring(book: CostBook, size: int, times: int) -> list[int]:
    """Choose so many times, nothing being measured; return the decisions that were to measure."""
    return [number for number in range(1, times + 1) if book.choose(size, 600).measuring]


def test_a_way_that_is_hundreds_of_times_slower_is_found_out_with_small_prompts() -> None:
    book, spent, all_in_all = CostBook(), 0.0, 0.0
    for number in range(200 * EXPLORE_EVERY):
        size, descriptors = ((SMALL, 72), (LARGE, 600))[number % 2]
        choice = book.choose(size, descriptors)
        direct = choice.way is Way.DIRECT
        seconds = size / 0.5e9 if direct else 0.002 + size / 300e9
        book.observe(Sample(choice.way, size, descriptors if direct else 1, seconds))
        all_in_all += seconds
        if direct and number:
            spent += seconds
            assert size == SMALL
    assert 0 < spent < 0.02 * all_in_all


def test_blocks_in_mapped_memory_are_staged_from_the_first_prompt_on_and_measured_some_time() -> None:
    book = CostBook.of_mapped_memory()
    assert all(book.choose(size, 36).way is Way.STAGED for size in (SMALL, LARGE))
    found = measuring(book, SMALL, 10 * EXPLORE_EVERY)
    assert len(found) == 1
    book.observe(Sample(Way.DIRECT, SMALL, 36, 0.16))
    assert measuring(book, SMALL, 200 * EXPLORE_EVERY) == []


def test_mapped_memory_that_is_read_as_fast_as_other_is_read_directly() -> None:
    book = CostBook.of_mapped_memory()
    for _ in range(80 * EXPLORE_EVERY):
        if book.choose(SMALL, 36).way is Way.DIRECT:
            book.observe(Sample(Way.DIRECT, SMALL, 36, 0.0005))
        else:
            book.observe(Sample(Way.STAGED, SMALL, 1, 0.0015))
    assert book.choose(SMALL, 36).way is Way.DIRECT


def test_where_large_prompts_alone_come_one_measures_again_in_the_end() -> None:
    book = CostBook()
    book.observe(Sample(Way.DIRECT, SMALL, 72, 0.15))
    assert slower(book, LARGE, 600) < EXPLORE_AT_MOST
    assert measuring(book, LARGE, 2 * EXPLORE_FIRST * int(EXPLORE_AT_MOST)) == []
    assert measuring(book, LARGE, 40 * EXPLORE_EVERY) != []


def test_a_stall_is_forgotten_with_the_next_measurement_that_is_none() -> None:
    book = CostBook()
    book.observe(Sample(Way.DIRECT, SMALL, 72, 0.15))
    book.observe(Sample(Way.DIRECT, SMALL, 72, 0.002))
    assert measuring(book, LARGE, 2 * EXPLORE_FIRST * int(EXPLORE_AT_MOST)) != []


@given(
    st.lists(st.tuples(st.integers(1, 2**36), st.integers(1, 10**6), st.floats(0, 1e6, allow_nan=False)), max_size=60)
)
def test_an_estimate_stays_a_duration_whatever_is_reported(samples: list[tuple[int, int, float]]) -> None:
    estimate = Estimate(PRIOR_DIRECT)
    for size, descriptors, seconds in samples:
        estimate.observe(size, descriptors, seconds)
        assert 0 < estimate.seconds(size, descriptors) < float("inf")


@pytest.mark.parametrize("prior", [PRIOR_DIRECT, PRIOR_MAPPED])
@given(size=st.integers(2**20, 2**32), descriptors=st.integers(1, 10**5), seconds=st.lists(st.floats(1e-4, 1.0)))
def test_a_measurement_never_takes_the_estimate_away_from_it(
    prior: tuple[float, ...], size: int, descriptors: int, seconds: list[float]
) -> None:
    estimate = Estimate(prior)
    for taken in seconds:
        before = estimate.seconds(size, descriptors)
        estimate.observe(size, descriptors, taken)
        after = estimate.seconds(size, descriptors)
        assert min(before, taken) * 0.999 <= after <= max(before, taken) * 1.001


@pytest.mark.parametrize(
    ("size", "descriptors", "seconds"), [(0, 1, 1.0), (1, 0, 1.0), (1, 1, -1.0), (1, 1, float("nan"))]
)
def test_what_no_transfer_has_is_refused(size: int, descriptors: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="no transfer"):
        Estimate(PRIOR_DIRECT).observe(size, descriptors, seconds)
