"""Loads that are part of the step that computes the rest: what is measured of them."""

from __future__ import annotations

import pytest
from tests.connector.loads_support import Clock, ledger

from kvserving_connector.core import cost
from kvserving_connector.core.loads import Tier


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_load_within_a_step_takes_what_the_first_token_took_beyond_the_rest(clock: Clock) -> None:
    book = ledger(clock)
    for _ in range(cost.EVIDENCE):
        book.model.observe_prefill(100, 0.02)
    assert book.takes("r", 900, 1000)
    book.allocated("r", 900, from_l2=False, within_step=True)
    book.prefill_started("r", 100)
    clock.now += 0.07
    book.prefill_ended("r")
    tally = book.drain()
    assert tally is not None
    assert (tally.loads, tally.tokens) == ({Tier.L1: 1}, {Tier.L1: 900})
    assert tally.seconds == {Tier.L1: pytest.approx(0.05)}
    assert book.model.loads[Tier.L1].estimate(900) == pytest.approx(0.05)
    assert (tally.prefills, book.model.prefill.count) == (0, cost.EVIDENCE)


@pytest.mark.parametrize("ends", ["preempted", "finished"])
def test_a_load_within_a_step_without_a_first_token_is_not_measured(clock: Clock, ends: str) -> None:
    book = ledger(clock)
    book.takes("r", 900, 1000)
    book.allocated("r", 900, from_l2=False, within_step=True)
    book.prefill_started("r", 100)
    getattr(book, ends)("r")
    book.prefill_started("r", 1000)
    clock.now += 1.0
    book.prefill_ended("r")
    tally = book.drain()
    assert tally is not None
    assert (tally.loads, tally.prefills) == ({}, 1)
