"""A store that keeps somebody waiting or fails for a moment: how long it is not asked, and for which keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.connector.tier.tier_engine import Engine, chunks, engine, hold, keys
from vllm.v1.kv_offload.base import LookupResult

from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.failed import Pause
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.gate import LAST_PAUSE, LATE_SECONDS, LONG_SECONDS
from kvserving_connector.vllm import prober
from kvserving_connector.vllm import tier as tier_module

_LONG = LAST_PAUSE / 2
"""The first pause in these tests, which is ended by hand: half a minute, and the second as long as any becomes."""


def waits(it: Engine, number: int, asked: Callable[[], float]) -> list[bool]:
    """Return for each of several requests, one after the other, whether the store kept it waiting: was ``asked``."""
    result = []
    for _ in range(number):
        before = asked()
        assert it.load(keys(2)) == {}
        result.append(asked() > before)
    return result


def let_pass(pause: Pause) -> None:
    pause.until = time.monotonic()


def test_after_a_look_up_that_hangs_nobody_waits_for_longer_each_time_until_one_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prober, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(tier_module, "_FIRST_PAUSE", _LONG)
    release = hold(monkeypatch, "exists")
    with engine(f"file://{tmp_path}/l2") as it:

        def given_up() -> float:
            return it.count("timeouts", "lookup")

        pause = it.tier._pauses["lookup"]
        assert waits(it, 3, given_up) == [True, False, False]
        assert it.count("misses", "paused") >= 4
        assert pause.until - time.monotonic() <= _LONG
        let_pass(pause)
        assert waits(it, 2, given_up) == [True, False]
        assert _LONG < pause.until - time.monotonic() <= 2 * _LONG
        release.set()

        def answered() -> bool:
            let_pass(pause)
            assert it.load(keys(2)) == {}
            return bool(pause._length == _LONG)

        it.until(answered)
        assert it.count("misses", "absent") > 0
        release.clear()
        let_pass(pause)
        assert waits(it, 1, given_up) == [True]
        assert pause.until - time.monotonic() <= _LONG


def test_a_store_that_answers_look_ups_and_delivers_nothing_keeps_one_request_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Any] = []

    def lost(self: FileStore, *arguments: Any) -> Any:
        reads.append(arguments)
        time.sleep(1.1 * LONG_SECONDS)
        raise StoreFault(Reason.TIMEOUT)

    monkeypatch.setattr(tier_module, "_FIRST_PAUSE", _LONG)
    monkeypatch.setattr(FileStore, "get", lost)
    monkeypatch.setattr(FileStore, "exists", lambda self, names, deadline: [True] * len(names))
    with engine(f"file://{tmp_path}/l2") as it:
        pause = it.tier._pauses["load"]
        assert waits(it, 4, lambda: len(reads)) == [True, False, False, False]
        assert pause.until - time.monotonic() <= _LONG
        let_pass(pause)
        assert waits(it, 2, lambda: len(reads)) == [True, False]
        assert _LONG < pause.until - time.monotonic() <= 2 * _LONG


def test_one_stall_pauses_the_store_once_however_many_are_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(8)
    with engine(url) as first:
        first.store(data)
    release = hold(monkeypatch, "get")
    with engine(url, load_timeout_s=0.3) as second:
        contexts = {key: second.request() for key in data}
        for key, context in contexts.items():

            def pending(key: Any = key, context: Any = context) -> bool:
                return second.manager.lookup(key, context) is LookupResult.HIT_PENDING

            second.until(pending)
        second.until(lambda: not second.manager.has_pending_work())
        release.set()
        for context in contexts.values():
            second.manager.on_request_finished(context)
        assert second.count("timeouts", "load") == 8
        assert second.tier._pauses["load"].until - time.monotonic() <= tier_module._FIRST_PAUSE
        second.until(lambda: second.load(keys(1)) == {} and second.count("misses", "absent") > 0, 3)


def test_objects_that_could_not_be_read_for_a_moment_are_soon_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, data = f"file://{tmp_path}/l2", chunks(4)
    with engine(url) as first:
        first.store(data)

    def cut(self: FileStore, *arguments: Any) -> Any:
        raise StoreFault(Reason.UNREACHABLE)

    with engine(url) as second:
        with monkeypatch.context() as patched:
            patched.setattr(FileStore, "get", cut)
            assert second.load(list(data)) == {}
        assert second.load(list(data)) == {}
        assert second.count("misses", "remembered") >= 4
        monkeypatch.setattr(second.tier._gate._late, "_clock", lambda: time.monotonic() + LATE_SECONDS)
        assert second.load(list(data)) == data


def test_a_pause_grows_once_for_an_incident() -> None:
    pause = Pause(1.0, 4.0)
    for asked in (0.0, 5.0, 9.0):
        pause.late(asked, 10.0)
    assert pause.until == 11.0
    # Asked before the pause, late after it: the same silence goes on.
    pause.late(9.5, 12.0)
    assert pause.until == 13.0
    lengths = []
    now = 20.0
    for _ in range(4):
        pause.late(now - 1, now)
        lengths.append(pause.until - now)
        now = pause.until + 2
    assert lengths == [2.0, 4.0, 4.0, 4.0]
    pause.answered()
    pause.late(now - 1, now)
    assert pause.until - now == 1.0
