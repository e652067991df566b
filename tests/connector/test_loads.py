"""The ledger of loads: what is decided, measured and counted, event by event."""

from __future__ import annotations

import pytest
from tests.connector.loads_support import Clock, ledger

from kvserving_connector.core import cost, loads
from kvserving_connector.core.loads import LoadLedger, Loads, Tier


@pytest.fixture
def clock() -> Clock:
    return Clock()


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
    ("policy", "has_l2", "l1", "l2"),
    [
        (Loads.NEVER, True, True, False),
        (Loads.ALWAYS, True, True, True),
        (Loads.NEVER, False, False, False),
        (Loads.ALWAYS, False, True, False),
    ],
)
def test_a_rule_is_about_the_outermost_tier(clock: Clock, policy: Loads, has_l2: bool, l1: bool, l2: bool) -> None:
    book = ledger(clock, policy, has_l2)
    assert book.may_ask_outer("r", 1000) is l2
    assert book.takes("r", 900, 1000) is l1


def test_always_holds_against_every_measurement(clock: Clock) -> None:
    book = ledger(clock, Loads.ALWAYS)
    slow_tier(book, Tier.L2)
    assert all(book.may_ask_outer(str(number), 1000) for number in range(100))


def test_with_always_what_was_read_from_l2_is_taken_from_l1_too(clock: Clock) -> None:
    book = refused(ledger(clock, Loads.ALWAYS), Tier.L1)
    for number in range(100):
        assert book.may_ask_outer(str(number), 1000)
        assert not book.deferred(str(number))
        assert book.takes(str(number), 900, 1000)


def test_with_never_l1_is_judged(clock: Clock) -> None:
    book = refused(ledger(clock, Loads.NEVER), Tier.L1)
    assert not book.may_ask_outer("r", 1000)
    assert not book.takes("r", 900, 1000)
    book.allocated("r", 0, from_l2=False)
    tally = book.drain()
    assert tally is not None
    assert tally.skipped == {Tier.L1: 1}


def wait(book: LoadLedger, clock: Clock, request: str, seconds: float) -> bool:
    """Ask for the request in steps of 0.1 s; return whether it is given up."""
    for _ in range(round(seconds / 0.1)):
        if book.deferred(request):
            return True
        book.stepped()
        clock.now += 0.1
    return book.deferred(request)


def test_a_silent_tier_is_given_up_once_for_all_who_waited_long(clock: Clock) -> None:
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
    # While it is silent, nobody new goes there, or waits for what was asked before; later it gets another chance.
    assert not book.may_ask_outer("c", 1000)
    assert book.deferred("c")
    clock.now += loads.FIRST_STALL
    assert book.may_ask_outer("d", 1000)
    assert not book.deferred("d")
    tally = book.drain()
    assert tally is not None
    assert tally.timeouts == 3


def test_one_late_request_does_not_give_up_those_that_have_just_come(clock: Clock) -> None:
    book = ledger(clock, timeout_s=30.0)
    assert book.may_ask_outer("slow", 1000)
    assert not wait(book, clock, "slow", 29.0)
    assert book.may_ask_outer("fine", 1000)
    assert not book.deferred("fine")
    assert wait(book, clock, "slow", 2.0)
    assert not book.deferred("fine")
    assert not book.gave_up("fine")


def silence(book: LoadLedger, clock: Clock, request: str) -> float:
    """Let the request wait for the whole timeout; return how long nobody goes to L2 then."""
    assert book.may_ask_outer(request, 1000)
    assert wait(book, clock, request, 30.1)
    began, number = clock.now, 0
    while not book.may_ask_outer(f"{request} {number}", 1000):
        clock.now += 0.25
        number += 1
    return clock.now - began


def test_nobody_goes_to_a_silent_tier_for_longer_each_time_until_it_answers(clock: Clock) -> None:
    book = ledger(clock, timeout_s=30.0)
    assert [silence(book, clock, f"r{number}") for number in range(6)] == pytest.approx([1, 2, 4, 8, 16, 30])
    assert silence(book, clock, "later") == pytest.approx(30)
    assert book.may_ask_outer("answered", 1000)
    assert not book.deferred("answered")
    assert book.takes("answered", 900, 1000)
    assert silence(book, clock, "again") == pytest.approx(1)


def test_an_answer_ends_the_silence(clock: Clock) -> None:
    book = ledger(clock)
    for request in ("slow", "fine"):
        assert book.may_ask_outer(request, 1000)
    assert wait(book, clock, "slow", 30.1)
    assert not book.deferred("fine")
    assert not book.may_ask_outer("kept away", 1000)
    assert book.takes("fine", 900, 1000)
    assert book.may_ask_outer("next", 1000)


def test_every_request_that_a_silence_kept_from_the_tier_is_counted(clock: Clock) -> None:
    book = ledger(clock)
    assert book.may_ask_outer("slow", 1000)
    assert wait(book, clock, "slow", 30.1)
    for number in range(3):
        assert not book.may_ask_outer(str(number), 1000)
        book.allocated(str(number), 400, from_l2=False)
    tally = book.drain()
    assert tally is not None
    assert (tally.timeouts, tally.skipped) == (1, {Tier.L2: 3})
    assert tally.skipped_tokens == {Tier.L2: 3 * 599}


def test_a_request_that_is_asked_for_every_other_step_is_given_up_as_well(clock: Clock) -> None:
    book = ledger(clock, timeout_s=30.0)
    for every in (2, 20):
        request, began = f"every {every}", clock.now
        while not book.deferred(request) and clock.now < began + 2000:
            for _ in range(every):
                clock.now += 0.05
                book.stepped()
        assert clock.now - began <= 30.1 if every == 2 else clock.now - began <= every * 30.1


def test_loads_whose_end_is_never_reported_take_bounded_memory(clock: Clock) -> None:
    book = ledger(clock)
    for number in range(2 * loads.MAX_ENDED):
        book.may_ask_outer(str(number), 1000)
        book.takes(str(number), 900, 1000)
        book.allocated(str(number), 900, from_l2=False)
        book.finished(str(number))
    assert len(book._loading) == len(book._ended) == loads.MAX_ENDED
    # What is reported late all the same is measured.
    book.received(str(2 * loads.MAX_ENDED - 1))
    tally = book.drain()
    assert tally is not None
    assert tally.loads == {Tier.L1: 1}
    assert len(book._loading) == len(book._ended) == loads.MAX_ENDED - 1


def serve(book: LoadLedger, clock: Clock, request: str, prompt: int, hit: int, seconds: float) -> int:
    """Serve a request whose hit takes L2 so long, with 0.1 ms to compute a token; return what was loaded."""
    loaded = 0
    if book.may_ask_outer(request, prompt) and hit:
        assert not book.deferred(request)
        book.stepped()
        clock.now += seconds
        if book.takes(request, hit, prompt):
            loaded = hit
    book.allocated(request, loaded, from_l2=loaded > 0)
    book.received(request)
    book.prefill_started(request, prompt - loaded)
    clock.now += 1e-4 * (prompt - loaded)
    book.prefill_ended(request)
    book.finished(request)
    return loaded


@pytest.mark.parametrize("hits", [(2048,), (1500, 2600), (300, 8000)])
def test_a_slow_tier_is_refused_on_partial_hits_as_well(clock: Clock, hits: tuple[int, ...]) -> None:
    book = ledger(clock)
    for number in range(50):
        serve(book, clock, f"miss {number}", 8192, 0, 0.0)
    taken = [serve(book, clock, str(n), 8192, hits[n % len(hits)], 20.0) > 0 for n in range(300)]
    assert sum(taken) < 25
    assert sum(taken[-100:]) <= 2
    # A refused request counts what it would typically have had.
    tally = book.drain()
    assert tally is not None
    typical = sum(hits) / len(hits)
    assert tally.skipped_tokens[Tier.L2] / tally.skipped[Tier.L2] == pytest.approx(typical, rel=0.5)


def test_a_fast_tier_is_taken_on_partial_hits(clock: Clock) -> None:
    book = ledger(clock)
    for number in range(50):
        serve(book, clock, f"miss {number}", 8192, 0, 0.0)
    assert all(serve(book, clock, str(n), 8192, 2048, 0.01) for n in range(300))


def test_a_tier_that_recovers_is_found_again_on_partial_hits(clock: Clock) -> None:
    book = ledger(clock)
    for number in range(50):
        serve(book, clock, f"miss {number}", 8192, 0, 0.0)
    for seconds, taken in ((20.0, False), (0.01, True)):
        last = [serve(book, clock, f"{seconds} {n}", 8192, 2048, seconds) > 0 for n in range(2000)][-200:]
        assert sum(last) > 190 if taken else sum(last) < 10


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


def test_measured_prefills_alone_are_told_from_time_to_time() -> None:
    """Otherwise the estimate that people see stays what it was until something is loaded."""
    now = [100.0]
    ledger = LoadLedger(loads=Loads.AUTO, has_l2=False, timeout_s=30.0, clock=lambda: now[0])
    assert ledger.drain() is None
    told = []
    for _ in range(12):
        ledger.prefill_started("r", 100)
        ledger.prefill_ended("r")
        tally = ledger.drain()
        told.append(tally.prefills if tally is not None else 0)
        now[0] += 1.0
    assert told == [1, 0, 0, 0, 0, 5, 0, 0, 0, 0, 5, 0]
