from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import kopf
import pytest

from kvserving_operator.control import source
from kvserving_operator.control.observe import Store
from kvserving_operator.control.source import Source, SourceEnded, Watches


class Answer(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class FakeSource:
    """Ends as it is told: by an answer of the apiserver, or when it is closed (``None``)."""

    def __init__(self, status: int | None) -> None:
        self._status = status
        self._closed = asyncio.Event()

    async def run(self) -> None:
        if self._status is None:
            await self._closed.wait()
            return
        raise SourceEnded("ended") from Answer(self._status)

    async def close(self) -> None:
        self._closed.set()


def watch(*statuses: int | None, now: Callable[[], float] = lambda: 0.0) -> tuple[int, int]:
    """Watch by sources that end so; return how many were made and how many comparisons were asked for."""
    made: list[FakeSource] = []
    resyncs: list[None] = []
    endings = iter(statuses)

    async def run() -> None:
        def source() -> Any:
            made.append(FakeSource(next(endings)))
            return made[-1]

        watches = Watches(source, lambda: resyncs.append(None), now)
        task = asyncio.create_task(watches.run())
        while not task.done() and len(made) < len(statuses):
            await asyncio.sleep(0)
        await watches.close()
        await task

    asyncio.run(run())
    return len(made), len(resyncs)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_PAUSE_SECONDS", 0.0)


def test_watches_that_end_for_a_passing_reason_begin_anew_and_the_cluster_is_compared() -> None:
    assert watch(410, 410, None) == (3, 2)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_reason_that_stays_ends_them(status: int) -> None:
    with pytest.raises(SourceEnded):
        watch(status, None)


def test_watches_that_end_again_and_again_are_given_up() -> None:
    with pytest.raises(SourceEnded):
        watch(*[410] * 6, None)


def test_ends_that_lie_far_apart_are_not_counted_together() -> None:
    clock = itertools.count(0.0, 100.0)
    assert watch(*[410] * 8, None, now=lambda: next(clock)) == (9, 8)


def test_a_user_without_a_name_can_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pod, whose image knows no user of that number."""
    spawn = kopf.spawn_tasks

    def nameless() -> str:
        raise OSError("No username set in the environment")

    async def spawned_and_ended(**arguments: Any) -> Any:
        tasks = await spawn(**arguments)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return tasks

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr(kopf, "spawn_tasks", spawned_and_ended)
    with pytest.raises(SourceEnded) as ended:
        asyncio.run(Source((), Store(lambda *_: None), lambda: None, (), lambda: None).run())
    assert ended.value.__cause__ is None
