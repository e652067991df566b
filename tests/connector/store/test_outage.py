"""Whether a server is asked, apart from any protocol; with real servers: test_valkey_faults.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.connector.store.servers import reason, wait_for

from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.outage import FAIR_SECONDS, Outage


class Asked:
    """A server that answers once it is told to."""

    def __init__(self) -> None:
        self.serves = threading.Event()
        self.times = threading.Semaphore(0)
        self.downs = 0

    def probe(self, _deadline: float) -> None:
        self.times.release()
        if not self.serves.is_set():
            raise StoreFault(Reason.UNAVAILABLE)

    def went_down(self) -> None:
        self.downs += 1


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def outage(asked: Asked) -> Iterator[Outage]:
    made = Outage("store:1", asked.probe, asked.went_down, clock=lambda: 10.0)
    yield made
    made.close()


def test_a_server_that_failed_is_not_asked_until_it_has_answered_its_own_question(outage: Outage, asked: Asked) -> None:
    outage.check()
    outage.note(StoreFault(Reason.UNREACHABLE), began=9.9)
    assert reason(outage.check) is Reason.UNREACHABLE
    outage.note(StoreFault(Reason.DENIED), began=9.9)
    assert asked.downs == 1
    assert asked.times.acquire(timeout=10)
    wait_for(lambda: outage.down is Reason.UNAVAILABLE)
    asked.serves.set()
    assert asked.times.acquire(timeout=10)
    wait_for(lambda: outage.down is None)
    outage.check()


@pytest.mark.parametrize("why", [Reason.ABSENT, Reason.FULL, Reason.LENGTH])
def test_what_a_server_says_of_one_object_leaves_it_asked(why: Reason, outage: Outage, asked: Asked) -> None:
    outage.note(StoreFault(why), began=0.0)
    outage.check()
    assert asked.downs == 0


def test_a_call_without_time_says_nothing_of_the_server(outage: Outage) -> None:
    outage.note(StoreFault(Reason.TIMEOUT), began=10.0 - FAIR_SECONDS / 2)
    outage.check()
    outage.note(StoreFault(Reason.TIMEOUT), began=10.0 - FAIR_SECONDS)
    assert reason(outage.check) is Reason.TIMEOUT


def test_nothing_is_asked_of_a_server_that_was_closed(outage: Outage, asked: Asked) -> None:
    outage.close()
    assert reason(outage.check) is Reason.CLOSED
    outage.note(StoreFault(Reason.UNREACHABLE), began=0.0)
    assert asked.downs == 0
