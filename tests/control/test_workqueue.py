from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.control.clock import VirtualClock

from kvserving_operator.control.workqueue import Backoff, Closed, TokenBucket, WorkQueue


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 10))


def queue(clock: VirtualClock, **backoff: float) -> WorkQueue[str]:
    return WorkQueue(clock, backoff=Backoff(**{"jitter": 0.0, **backoff}), draw=lambda: 0.5)


def test_a_key_that_waits_is_there_once() -> None:
    async def work() -> None:
        q = queue(VirtualClock())
        for _ in range(5):
            q.add("a")
        q.add("b")
        assert len(q) == 2
        assert [await q.get(), await q.get()] == ["a", "b"]
        assert len(q) == 0

    run(work())


def test_a_key_added_during_its_work_runs_once_more_and_never_twice_at_once() -> None:
    async def work() -> None:
        q = queue(VirtualClock())
        q.add("a")
        await q.get()
        q.add("a")
        q.add("a")
        assert len(q) == 0
        q.done("a")
        assert len(q) == 1
        await q.get()
        q.done("a")
        assert len(q) == 0

    run(work())


def test_a_delayed_key_comes_when_it_is_due_and_an_event_makes_it_come_at_once() -> None:
    clock = VirtualClock()
    q = queue(clock)
    q.add_after("a", 10)
    clock.advance(9.9)
    assert len(q) == 0
    clock.advance(0.2)
    assert len(q) == 1
    q.add_after("b", 10)
    q.add("b")
    assert len(q) == 2
    clock.advance(20)
    assert len(q) == 2, "the timer of a key that came early is taken back"


def test_of_two_delays_the_shorter_holds() -> None:
    clock = VirtualClock()
    q = queue(clock)
    q.add_after("a", 10)
    q.add_after("a", 100)
    q.add_after("b", 100)
    q.add_after("b", 10)
    clock.advance(11)
    assert len(q) == 2


def test_delays_double_up_to_the_longest_and_start_anew_after_success() -> None:
    q = queue(VirtualClock(), first=1, longest=10)
    assert [q.retry("a") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert q.retry("b") == 1
    q.forget("a")
    assert q.retry("a") == 1


def test_a_retry_waits_as_long_as_the_server_asked_for() -> None:
    clock = VirtualClock()
    q = queue(clock, first=1)
    assert q.retry("a", at_least=30) == 30
    clock.advance(29)
    assert len(q) == 0
    clock.advance(2)
    assert len(q) == 1


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_jitter_only_shortens_a_delay(failures: int, drawn: float) -> None:
    backoff = Backoff(first=0.2, longest=60, jitter=0.3)
    delay = backoff.delay(failures, lambda: drawn)
    full = min(60, 0.2 * 2.0 ** min(failures - 1, 32))
    assert 0.7 * full <= delay <= full + 1e-9


def test_the_age_of_the_first_key_is_its_waiting_time() -> None:
    async def work() -> None:
        clock = VirtualClock()
        q = queue(clock)
        assert q.oldest == 0
        q.add("a")
        clock.advance(7)
        q.add("b")
        clock.advance(1)
        assert q.oldest == 8
        await q.get()
        assert q.oldest == 1

    run(work())


def test_closing_ends_every_waiting_worker_and_refuses_keys() -> None:
    async def work() -> None:
        q = queue(VirtualClock())
        waiting = [asyncio.create_task(q.get()) for _ in range(3)]
        await asyncio.sleep(0)
        q.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, Closed) for error in ended)
        q.add("a")
        assert len(q) == 0
        with pytest.raises(Closed):
            await q.get()

    run(work())


def test_a_cancelled_worker_loses_no_key() -> None:
    async def work() -> None:
        q = queue(VirtualClock())
        first, second = asyncio.create_task(q.get()), asyncio.create_task(q.get())
        await asyncio.sleep(0)
        q.add("a")
        first.cancel()
        assert await second == "a"

    run(work())


STEPS = st.sampled_from(["add", "done", "get", "later", "fail"])


@given(st.lists(st.tuples(STEPS, st.sampled_from("abc")), max_size=60))
def test_no_key_is_lost_and_none_is_worked_on_twice(steps: list[tuple[str, str]]) -> None:
    async def work() -> None:
        clock = VirtualClock()
        q = queue(clock, first=1, longest=4)
        working: set[str] = set()
        owed: set[str] = set()
        for step, key in steps:
            if step == "add":
                q.add(key)
                owed.add(key)
            elif step == "later":
                q.add_after(key, 3)
                owed.add(key)
            elif step == "fail" and key in working:
                q.retry(key)
                owed.add(key)
            elif step == "get" and len(q):
                taken = await q.get()
                assert taken not in working
                working.add(taken)
                owed.discard(taken)
            elif step == "done" and key in working:
                working.discard(key)
                q.done(key)
            clock.advance(0.5)
        for key in list(working):
            q.done(key)
        clock.advance(100)
        seen = {await q.get() for _ in range(len(q))}
        assert owed <= seen

    run(work())


def test_the_bucket_bounds_the_rate_and_lets_a_burst_through() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(clock, rate=10, burst=3)
    assert [round(bucket.reserve(), 3) for _ in range(5)] == [0, 0, 0, 0.1, 0.2]
    clock.advance(10)
    assert bucket.reserve() == 0


def test_after_a_429_no_token_is_used_before_its_time() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(clock, rate=10, burst=3)
    bucket.hold(4)
    assert bucket.reserve() == 4
    clock.advance(4)
    assert bucket.reserve() == 0
