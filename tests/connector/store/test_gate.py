"""When a store is asked again after it failed at something, or kept somebody waiting."""

from __future__ import annotations

import pytest

from kvserving_connector.store.client import Reason
from kvserving_connector.store.gate import FIRST_PAUSE, LAST_PAUSE, LATE_SECONDS, LONG_SECONDS, Gate
from kvserving_connector.store.transfers import Finished

A, B, C = b"a", b"b", b"c"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    def __init__(self, timeout_s: float = 30.0) -> None:
        self.clock = Clock()
        self.gate = Gate(timeout_s, clock=self.clock)

    def end(
        self,
        *,
        load: bool = True,
        done: tuple[bytes, ...] = (),
        failed: tuple[bytes, ...] = (),
        wrong: tuple[bytes, ...] = (),
        present: tuple[bytes, ...] = (),
        seconds: float = 0.1,
        timed_out: bool = False,
        silent: bool = False,
    ) -> None:
        ended = Finished(1, load, done, failed, present, wrong, 0, seconds, timed_out, silent or timed_out)
        self.gate.ended(ended, self.clock.now)

    def why(self, key: bytes) -> Reason | None:
        return self.gate.closed_for(key, self.clock.now)

    def silence(self, operation: str) -> float:
        """Let the store be silent once, when it may be asked again; return how long it is not asked then."""
        if operation == "lookup":
            self.gate.looked_up(self.clock.now, self.clock.now + 2, silent=True)
            self.clock.now += 2
        else:
            self.clock.now += 2
            self.end(failed=(A,), seconds=2, silent=True)
        return self.gate.pauses[operation].until - self.clock.now

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds


def test_a_gate_is_open_at_first() -> None:
    it = Rig()
    assert it.why(A) is None
    assert not it.gate.paused(it.clock.now)


@pytest.mark.parametrize("operation", ["lookup", "load"])
def test_a_store_that_stays_silent_is_asked_ever_more_rarely_until_it_answers(operation: str) -> None:
    it = Rig()
    lengths = []
    for _ in range(8):
        lengths.append(it.silence(operation))
        assert it.why(B) is Reason.PAUSED
        assert it.gate.paused(it.clock.now)
        it.wait(lengths[-1])
        assert it.why(B) is None
    assert lengths[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert lengths[-1] == LAST_PAUSE
    if operation == "lookup":
        it.gate.looked_up(it.clock.now, it.clock.now, silent=False)
    else:
        it.end(done=(A,))
    assert it.silence(operation) == FIRST_PAUSE


def test_a_store_that_answers_look_ups_only_is_paused_for_longer_each_time() -> None:
    it = Rig()
    assert it.silence("load") == FIRST_PAUSE
    it.wait(FIRST_PAUSE)
    it.gate.looked_up(it.clock.now, it.clock.now, silent=False)
    assert it.silence("load") == 2 * FIRST_PAUSE


def test_failures_do_not_end_the_growth_of_pauses() -> None:
    it = Rig()
    assert it.silence("load") == FIRST_PAUSE
    it.wait(FIRST_PAUSE)
    it.end(failed=(A,))
    assert it.silence("load") == 2 * FIRST_PAUSE


def test_failures_that_held_nobody_up_do_not_pause_the_store() -> None:
    it = Rig()
    it.end(failed=(A,), seconds=LONG_SECONDS / 2, silent=True)
    assert it.why(B) is None
    it.end(failed=(A,), seconds=10, silent=False)
    assert it.why(B) is None


def test_a_timeout_shorter_than_what_counts_as_long_pauses_the_store() -> None:
    it = Rig(timeout_s=LONG_SECONDS / 5)
    it.end(failed=(A,), seconds=LONG_SECONDS / 5, timed_out=True)
    assert it.why(B) is Reason.PAUSED


def test_an_object_that_is_wrong_is_not_asked_for_until_it_was_written_again() -> None:
    it = Rig()
    it.end(failed=(A, B), wrong=(A,))
    it.wait(LATE_SECONDS)
    assert it.why(A) is Reason.REMEMBERED
    assert it.gate.remembers(A)
    assert it.why(B) is None
    it.end(load=False, done=(A,), present=(A,))
    assert it.why(A) is Reason.REMEMBERED
    it.end(load=False, done=(A,))
    assert it.why(A) is None


def test_an_object_that_could_not_be_had_is_asked_for_again_after_a_while() -> None:
    it = Rig()
    it.end(failed=(A,))
    it.wait(LATE_SECONDS - 0.1)
    assert it.why(A) is Reason.REMEMBERED
    it.wait(0.2)
    assert it.why(A) is None


@pytest.mark.parametrize("load", [True, False])
def test_an_object_that_could_not_be_had_is_asked_for_again_once_the_store_serves(load: bool) -> None:
    it = Rig()
    it.end(failed=(A, B), wrong=(B,))
    it.end(load=load, done=(C,), timed_out=True, seconds=0)
    assert it.why(A) is Reason.REMEMBERED
    it.end(load=load, done=(C,))
    assert it.why(A) is None
    assert it.why(B) is Reason.REMEMBERED


def test_a_look_up_that_was_given_up_is_remembered_and_pauses_the_store() -> None:
    it = Rig()
    it.wait(2)
    it.gate.given_up([A], it.clock.now - 2, it.clock.now)
    assert it.why(B) is Reason.PAUSED
    it.wait(FIRST_PAUSE)
    assert it.why(A) is Reason.REMEMBERED
    assert it.why(B) is None
