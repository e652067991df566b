from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kvserving_operator.control.failures import ApiFailure
from kvserving_operator.control.patience import patiently


class Clock:
    """Seconds that pass by sleeping alone."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def answer(*statuses: int, clock: Clock) -> str:
    """What is answered after requests that failed so; the last of ``statuses`` again and again."""
    told: Iterator[int] = iter(statuses)

    async def ask() -> str:
        if status := next(told, 0):
            raise ApiFailure(status, "busy", "", "GET /apis", {}, retry_after=7.0 if status == 429 else 0.0)
        return "answered"

    return asyncio.run(patiently(ask, now=clock, sleep=clock.sleep))


def test_an_apiserver_that_is_busy_at_the_start_does_not_end_the_operator() -> None:
    clock = Clock()
    assert answer(503, 504, 429, clock=clock) == "answered"
    assert clock() == 9.0, "as long as the apiserver asked for"


def test_what_does_not_pass_ends_it_at_once_and_what_does_after_a_minute() -> None:
    clock = Clock()
    with pytest.raises(ApiFailure):
        answer(403, clock=clock)
    assert clock() == 0.0
    with pytest.raises(ApiFailure):
        answer(*[503] * 100, clock=clock)
    assert 60.0 < clock() < 65.0
