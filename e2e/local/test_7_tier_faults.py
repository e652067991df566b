"""Faults of the store while a service runs: every prompt is answered as before, and a counter says what was wrong."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.local.asking import Texts
from e2e.local.stage import Stage
from e2e.local.tiers import CHUNKS, PROMPT, WHOLE, Answer, Asker, Reading, Tiered
from e2e.local.valkey import Valkey, valkey

PROMPTS = range(20, 26)
AGAIN_SECONDS = 40.0
FRESH = itertools.count(1_000_000)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with valkey(tmp_path_factory.mktemp("store")) as found:
        yield found


@pytest.fixture(scope="module")
def asker(stage: Stage, store: Valkey, qwen3: Path, texts: Texts) -> Asker:
    cache = {"l1": {"size": "24Mi"}, "l2": store.cache()}
    return Asker(stage.show(Tiered("faults", qwen3, prefill=0, cache=cache)), texts)


@pytest.fixture(scope="module")
def answers(asker: Asker) -> dict[int, Answer]:
    """The prompts, each of which one test asks again; only the store has their KV."""
    found = {}
    for seed in PROMPTS:
        with asker.storing(CHUNKS):
            found[seed] = asker.ask(seed)
    asker.flood(20000, 6)
    return found


def asked_again(asker: Asker, answers: dict[int, Answer], seed: int) -> Reading:
    """Ask a prompt again; return what was counted. The answer is the one that was computed before any fault."""
    with asker.counting() as counted:
        again = asker.ask(seed)
    assert again.ids == answers[seed].ids
    found = counted()
    assert found.own == 0
    assert found.loaded["l1"] == 0
    return found


def test_the_store_serves_before_anything_happens(asker: Asker, answers: dict[int, Answer]) -> None:
    found = asked_again(asker, answers, 20)
    assert found.loaded["l2"] == WHOLE, found


def test_a_store_that_hangs_costs_one_request_a_short_wait(
    asker: Asker, answers: dict[int, Answer], store: Valkey, stage: Stage
) -> None:
    store.hang()
    try:
        started = time.monotonic()
        found = asked_again(asker, answers, 21)
        first = time.monotonic() - started
        assert found.loaded["l2"] == 0
        assert found.of("kvserving:store_timeouts_total", operation="lookup") + found.missed("timeout") > 0
        started = time.monotonic()
        asker.ask(2100)
        second = time.monotonic() - started
    finally:
        store.resume()
    stage.numbers.append(f"store hangs: the first request took {first:.1f} s, the next {second:.1f} s")
    assert second < first
    # Other prompts come back at once, and what was given up does as soon as the store delivers again.
    returns(asker, answers, 25)
    asker.flood(21000, 6)
    returns(asker, answers, 21)


@pytest.mark.parametrize(
    ("setting", "value", "reason"), [("maxmemory", "1", "full"), ("min-replicas-to-write", "1", "read-only")]
)
def test_a_store_that_takes_nothing_serves_what_it_has(
    asker: Asker, answers: dict[int, Answer], store: Valkey, setting: str, value: str, reason: str
) -> None:
    with store.setting(setting, value):
        until(asker, lambda now: now.of("kvserving:store_skipped_chunks_total", reason=reason) > 0)
        returns(asker, answers, 25)
    fills_again(asker)


def test_a_killed_store_is_a_miss_and_comes_back_empty(asker: Asker, answers: dict[int, Answer], store: Valkey) -> None:
    store.kill()
    found = asked_again(asker, answers, 22)
    assert found.loaded["l2"] == 0
    assert found.missed("unreachable") > 0
    store.start()
    assert store.keys() == 0
    fills_again(asker)
    found = asked_again(asker, answers, 23)
    assert found.loaded["l2"] == 0
    assert found.missed("absent") > 0


def test_a_changed_password_is_a_miss_until_the_old_one_holds(
    asker: Asker, answers: dict[int, Answer], store: Valkey
) -> None:
    old = store.password
    store.change_password("second")
    with asker.counting() as counted:
        assert asker.ask(24).ids == answers[24].ids
        asker.ask(2400)
    assert counted().loaded["l2"] == 0
    assert counted().missed("denied") > 0
    store.change_password(old)
    fills_again(asker)
    asker.flood(24000, 6)
    returns(asker, answers, 24)


def fills_again(asker: Asker) -> None:
    """Send prompts until the engine writes to the store again."""
    until(asker, lambda now: now.of("kvserving:store_written_chunks_total") > 0)


def until(asker: Asker, holds: Callable[[Reading], bool]) -> None:
    """Send prompts that nobody sent before until what was counted since then is so."""
    deadline = time.monotonic() + AGAIN_SECONDS
    before = asker.read()
    while not holds(counted := asker.read().since(before)):
        assert time.monotonic() < deadline, counted
        asker.ask(next(FRESH), 200, 1)


def returns(asker: Asker, answers: dict[int, Answer], seed: int) -> None:
    """Ask a prompt, with floods between, until the store serves it: what it computed is kept there."""
    deadline = time.monotonic() + AGAIN_SECONDS
    flood = 1000 * seed + 500
    while True:
        with asker.counting() as counted:
            assert asker.ask(seed).ids == answers[seed].ids
        if counted().loaded["l2"] == WHOLE:
            return
        assert time.monotonic() < deadline, f"the store never served the {PROMPT} tokens again: {counted()}"
        asker.flood(flood, 6)
        flood += 6
