"""Look-ups in a thread: a store that hangs holds up nobody, and its answers say what they are worth."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.connector.store.servers import wait_for

from kvserving_connector.store import lookups
from kvserving_connector.store.client import Reason
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.lookups import Answer, Lookups, judge
from kvserving_connector.store.tally import Event, Tally


class Held(FileStore):
    """A directory whose look-ups wait for ``gate``, and are noted."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[int] = []
        self.error: Exception | None = None

    def exists(self, keys: Sequence[str], deadline: float) -> list[bool | Reason]:
        self.calls.append(len(keys))
        self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return super().exists(keys, deadline)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path / "l2")
    yield made
    made.gate.set()
    made.close()


def names(number: int) -> list[str]:
    return [object_name(bytes(32), index.to_bytes(36, "big")) for index in range(number)]


def put(store: FileStore, objects: Sequence[str]) -> None:
    for name in objects:
        store.put(name, [b"body"], time.monotonic() + 10)


def wait(it: Lookups, number: int = 1) -> list[Answer]:
    found: list[Answer] = []

    def enough() -> bool:
        found.extend(it.answers())
        return len(found) >= number

    wait_for(enough)
    return found


def test_answers_come_in_the_order_of_the_names_and_once_for_each_look_up(store: Held) -> None:
    wanted = names(4)
    put(store, wanted[:2])
    it = Lookups(store)
    before = time.monotonic()
    it.submit(7, wanted)
    it.submit(8, wanted[:1])
    it.submit(9, [])
    first, second, third = wait(it, 3)
    assert (first.ticket, first.found) == (7, (True, True, False, False))
    assert (second.ticket, second.found) == (8, (True,))
    assert (third.ticket, third.found) == (9, ())
    assert first.answered
    assert not first.silent
    assert before <= first.asked_at <= time.monotonic()
    assert it.answers() == []
    it.close()


def test_names_behind_many_that_are_absent_are_not_asked_for(store: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "_BATCH", 10)
    wanted = names(65)
    put(store, [name for index, name in enumerate(wanted) if index not in range(15, 35)])
    it = Lookups(store)
    it.submit(1, wanted)
    (answer,) = wait(it)
    assert answer.found == (True,) * 15 + (False,) * 15
    it.submit(2, [*wanted[:15], *wanted[35:]])
    (answer,) = wait(it)
    assert answer.found == (True,) * 45
    it.submit(3, [*wanted[:19], *wanted[31:]])
    (answer,) = wait(it)
    assert answer.found == (True,) * 15 + (False,) * 8 + (True,) * 30
    assert store.calls == [10, 10, 10, *[10] * 4, 5, *[10] * 5, 3]
    it.close()


def test_a_store_that_left_names_without_an_answer_was_silent(store: Held) -> None:
    store.gate.clear()
    it = Lookups(store, seconds=0.2)
    it.submit(1, names(2))
    wait_for(lambda: len(store.calls) == 1)
    time.sleep(0.25)
    assert it.answers() == []
    store.gate.set()
    (answer,) = wait(it)
    assert answer.found == (Reason.TIMEOUT, Reason.TIMEOUT)
    assert answer.silent
    assert not answer.answered
    it.close()


def test_look_ups_that_were_given_up_while_the_store_hung_are_not_asked(store: Held) -> None:
    store.gate.clear()
    it = Lookups(store, seconds=0.1)
    for ticket in range(5):
        it.submit(ticket, names(2))
    wait_for(lambda: len(store.calls) == 1)
    time.sleep(0.15)
    store.gate.set()
    answers = wait(it, 5)
    assert len(store.calls) == 1
    assert [answer.found for answer in answers[1:]] == [()] * 4
    assert not any(answer.silent or answer.answered for answer in answers[1:])
    it.close()


def test_an_unexpected_error_is_told_and_the_thread_lives_on(store: Held, caplog: pytest.LogCaptureFixture) -> None:
    it = Lookups(store)
    store.error = RuntimeError("broken client")
    it.submit(1, names(2))
    (answer,) = wait(it)
    assert answer.found == (Reason.IO,)
    assert not answer.answered
    assert "broken client" in caplog.text
    store.error = None
    it.submit(2, names(1))
    assert wait(it)[0].answered
    it.close()


def test_an_unexpected_error_before_a_look_up_is_told_and_the_look_up_made(
    store: Held, caplog: pytest.LogCaptureFixture
) -> None:
    def before() -> None:
        raise RuntimeError("unforeseen")

    it = Lookups(store, before=before)
    for ticket in (1, 2):
        it.submit(ticket, names(1))
        (answer,) = wait(it)
        assert (answer.found, answer.answered) == ((False,), True)
    it.close()
    assert "unforeseen" in caplog.text


def test_what_comes_before_each_look_up_is_called_in_the_thread(store: Held) -> None:
    seen: list[str] = []
    it = Lookups(store, before=lambda: seen.append(threading.current_thread().name))
    it.submit(1, names(1))
    wait(it)
    assert seen == ["kv-store-look-up"]
    it.close()


def test_closing_leaves_a_thread_behind_that_hangs_and_ends_one_that_does_not(store: Held) -> None:
    hung, idle = Lookups(store, seconds=0.2), Lookups(store)
    store.gate.clear()
    hung.submit(1, names(1))
    wait_for(lambda: len(store.calls) == 1)
    began = time.monotonic()
    hung.close()
    idle.close()
    assert time.monotonic() - began < 1.5
    assert hung._thread.is_alive()
    assert not idle._thread.is_alive()
    store.gate.set()
    wait_for(lambda: not hung._thread.is_alive())


@pytest.mark.parametrize(
    ("found", "took", "silent", "answered"),
    [
        ([True, False], 0.1, False, True),
        ([False], 1.9, False, True),
        ([True], 2.0, False, False),
        ([Reason.UNREACHABLE], 0.1, False, False),
        ([True, Reason.UNREACHABLE], 0.1, False, True),
        ([True, Reason.TIMEOUT], 0.4, False, False),
        ([True, Reason.TIMEOUT], 0.5, True, False),
        ([Reason.TIMEOUT], 3.9, True, False),
        ([Reason.TIMEOUT], 4.0, False, False),
        ([], 0.1, False, False),
    ],
)
def test_what_an_answer_says_about_the_store(
    found: list[bool | Reason], took: float, silent: bool, answered: bool
) -> None:
    assert judge(found, took, 2.0) == (silent, answered)


def test_hits_and_misses_are_counted_by_reason() -> None:
    tally = Tally()
    lookups.count(tally, [True, False, True, Reason.TIMEOUT, False])
    assert tally.take() == {(Event.HIT, ""): 2, (Event.MISS, "absent"): 2, (Event.MISS, "timeout"): 1}
    lookups.count(tally, [])
    assert tally.take() == {}
