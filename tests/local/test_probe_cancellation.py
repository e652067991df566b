"""A probe that is cancelled in the moment in which its timeout is over ends, and is no failed probe that goes on."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Iterator

import aiohttp
import pytest

from kvserving_operator.local.probes import Probe

TIMEOUT = 0.2


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and answers nothing, as a stopped process does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/health"


def probe(url: str | None = None, argv: tuple[str, ...] | None = None) -> Probe:
    return Probe(url, argv, {}, 0.0, 5.0, TIMEOUT, 1, 1)


async def cancelled_beside_its_timeout(asked: Probe, cancelled_after: float) -> bool:
    """Whether the check ended as cancelled; the loop stands still until the timeout and the cancellation are due."""
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        task = asyncio.create_task(asked.check(session, {}))
        await asyncio.sleep(TIMEOUT / 4)
        loop.call_later(cancelled_after - TIMEOUT / 4, task.cancel)
        time.sleep(2 * TIMEOUT)
        await asyncio.wait({task}, timeout=30)
    assert task.done()
    return task.cancelled()


@pytest.mark.parametrize("cancelled_after", [0.75 * TIMEOUT, 1.25 * TIMEOUT])
def test_a_request_that_is_cancelled_as_its_timeout_ends_is_cancelled(silent: str, cancelled_after: float) -> None:
    assert asyncio.run(cancelled_beside_its_timeout(probe(silent), cancelled_after))


@pytest.mark.parametrize("cancelled_after", [0.75 * TIMEOUT, 1.25 * TIMEOUT])
def test_a_program_that_is_cancelled_as_its_timeout_ends_is_cancelled(cancelled_after: float) -> None:
    sleeping = probe(argv=(sys.executable, "-c", "import time; time.sleep(60)"))
    assert asyncio.run(cancelled_beside_its_timeout(sleeping, cancelled_after))


def test_a_request_without_an_answer_fails_when_its_timeout_is_over(silent: str) -> None:
    async def ask() -> str | None:
        async with aiohttp.ClientSession() as session:
            return await probe(silent).check(session, {})

    assert asyncio.run(ask()) == "no answer within 0.2 s"
