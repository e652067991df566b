"""The ledger of loads: what is decided, measured and counted, event by event."""

from __future__ import annotations

import pytest

from kvserving_connector.core import cost
from kvserving_connector.core.loads import LoadLedger, Loads, Tier


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ledger(clock: Clock, loads: Loads = Loads.AUTO, has_l2: bool = True, timeout_s: float = 30.0) -> LoadLedger:
    return LoadLedger(loads=loads, has_l2=has_l2, timeout_s=timeout_s, clock=clock)


def slow_tier(book: LoadLedger, tier: Tier) -> None:
    for _ in range(cost.EVIDENCE):
        book.model.observe_load(tier, 900, 50.0)
        book.model.observe_load(tier, 999, 50.0)
        book.model.observe_prefill(1000, 0.1)


def refused(book: LoadLedger, tier: Tier) -> LoadLedger:
    """Ask until the model refuses the tier."""
    slow_tier(book, tier)
    for number in range(cost.FIRST_DWELL):
        book.model.decide(tier, 999 if tier is Tier.L2 else 900, 1000)
        book.finished(str(number))
    return book


def test_a_load_of_l1_is_measured_from_allocation_to_receipt(clock: Clock) -> None:
    book = ledger(clock)
    assert book.may_ask_outer("r", 1000)
    assert book.takes("r", 900, 1000)
    clock.now += 5.0
    book.allocated("r", 900, from_l2=False)
    clock.now += 0.25
    book.received("r")
    tally = book.drain()
    assert tally is not None
    assert (tally.loads, tally.tokens, tally.seconds) == ({Tier.L1: 1}, {Tier.L1: 900}, {Tier.L1: 0.25})
    assert book.model.loads[Tier.L1].estimate(900) == pytest.approx(0.25)
    assert book.drain() is None


def test_a_load_of_l2_is_measured_from_the_first_question_without_an_answer(clock: Clock) -> None:
    book = ledger(clock)
    assert book.may_ask_outer("r", 1000)
    for _ in range(4):
        assert not book.deferred("r")
        book.stepped()
        clock.now += 0.5
    assert book.was_deferred("r")
    for _ in range(3):
        assert book.takes("r", 900, 1000)
        clock.now += 5.0  # No blocks are free: not the tier's time.
        book.stepped()
    book.allocated("r", 900, from_l2=True)
    clock.now += 0.25
    book.received("r")
    tally = book.drain()
    assert tally is not None
    assert tally.seconds == {Tier.L2: pytest.approx(2.25)}


def test_time_in_which_nobody_asked_is_neither_the_tier_s_cost_nor_a_timeout(clock: Clock) -> None:
    """The engine was full for a minute: the request could not have run with an answer either."""
    book = ledger(clock, timeout_s=30.0)
    book.may_ask_outer("r", 1000)
    assert not book.deferred("r")
    for _ in range(60):
        clock.now += 1.0
        book.stepped()
    assert not book.deferred("r")
    book.stepped()
    clock.now += 0.5
    assert book.takes("r", 900, 1000)
    book.allocated("r", 900, from_l2=True)
    book.received("r")
    tally = book.drain()
    assert tally is not None
    assert tally.timeouts == 0
    assert tally.seconds == {Tier.L2: pytest.approx(0.5)}


def test_what_another_connector_loads_is_neither_ours_nor_a_skip(clock: Clock) -> None:
    book = ledger(clock)
    book.may_ask_outer("r", 1000)
    assert book.takes("r", 900, 1000)
    book.allocated("r", 0, from_l2=False)
    book.received("r")
    assert book.drain() is None
    assert book.model.loads == {}


def test_a_refused_hit_counts_once_however_often_it_is_asked_for(clock: Clock) -> None:
    book = refused(ledger(clock, has_l2=False), Tier.L1)
    assert [book.takes("r", 900, 1000) for _ in range(100)] == [False] * 100
    assert book.drain() is None
    book.allocated("r", 0, from_l2=False)
    book.allocated("r", 0, from_l2=False)
    tally = book.drain()
    assert tally is not None
    assert (tally.skipped, tally.skipped_tokens) == ({Tier.L1: 1}, {Tier.L1: 900})


def test_a_tier_that_was_not_asked_counts_what_it_could_have_given(clock: Clock) -> None:
    book = refused(ledger(clock), Tier.L2)
    assert not book.may_ask_outer("r", 1000)
    assert book.takes("r", 400, 1000)
    book.allocated("r", 400, from_l2=False)
    tally = book.drain()
    assert tally is not None
    assert (tally.skipped, tally.skipped_tokens) == ({Tier.L2: 1}, {Tier.L2: 599})


@pytest.mark.parametrize(
    ("loads", "has_l2", "l1", "l2"),
    [
        (Loads.NEVER, True, True, False),
        (Loads.ALWAYS, True, True, True),
        (Loads.NEVER, False, False, False),
        (Loads.ALWAYS, False, True, False),
    ],
)
def test_a_rule_is_about_the_outermost_tier(clock: Clock, loads: Loads, has_l2: bool, l1: bool, l2: bool) -> None:
    book = ledger(clock, loads, has_l2)
    assert book.may_ask_outer("r", 1000) is l2
    assert book.takes("r", 900, 1000) is l1


def test_always_holds_against_every_measurement(clock: Clock) -> None:
    book = ledger(clock, Loads.ALWAYS)
    slow_tier(book, Tier.L2)
    assert all(book.may_ask_outer(str(number), 1000) for number in range(100))


def test_a_silent_tier_is_given_up_once_for_all_who_wait(clock: Clock) -> None:
    book = ledger(clock, timeout_s=30.0)
    for request in ("a", "b"):
        assert book.may_ask_outer(request, 1000)
        assert not book.deferred(request)
    clock.now += 29.9
    assert not book.deferred("a")
    clock.now += 0.2
    assert book.deferred("a")
    assert book.gave_up("a")
    assert book.deferred("b")
    # While it is silent, nobody new goes there; later it gets another chance.
    assert not book.may_ask_outer("c", 1000)
    assert book.deferred("c")
    clock.now += 30.0
    assert book.may_ask_outer("d", 1000)
    assert not book.deferred("d")
    tally = book.drain()
    assert tally is not None
    assert tally.timeouts == 3


def test_prefill_is_measured_from_its_first_step_to_its_first_token(clock: Clock) -> None:
    book = ledger(clock)
    book.prefill_started("r", 1000)
    book.prefill_started("nothing to compute", 0)
    assert book.prefilling() == ("r",)
    clock.now += 0.5
    book.prefill_ended("r")
    book.prefill_ended("r")
    assert book.prefilling() == ()
    assert book.model.prefill.count == 1
    assert book.model.prefill.estimate(1000) == pytest.approx(0.5)


def test_preempted_and_ended_requests_leave_no_measurement_and_no_memory(clock: Clock) -> None:
    book = ledger(clock)
    for request, event in (("p", book.preempted), ("f", book.finished)):
        book.may_ask_outer(request, 1000)
        book.prefill_started(request, 1000)
        event(request)
    assert book.prefilling() == ()
    assert book.model.prefill.count == 0
    assert not book.was_deferred("f")
    book.allocated("never asked", 0, from_l2=False)
    book.received("never loaded")
    assert book.drain() is None


def test_a_prompt_of_one_token_asks_no_tier(clock: Clock) -> None:
    assert not ledger(clock).may_ask_outer("r", 1)


def test_a_load_that_only_measures_is_counted_as_such(clock: Clock) -> None:
    book = refused(ledger(clock, has_l2=False), Tier.L1)
    taken = 0
    for number in range(cost.FIRST_PAUSE):
        taken += book.takes(str(number), 900, 1000)
        book.finished(str(number))
    tally = book.drain()
    assert taken == 1
    assert tally is not None
    assert tally.measuring == {Tier.L1: 1}
