from __future__ import annotations

import asyncio

import aiohttp

from kvserving_operator.control.health import Vitals, alive, ready, serve
from kvserving_operator.control.metrics import Metrics


def vitals(**changes: object) -> Vitals:
    found = Vitals(role="active", synced=True)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_an_operator_that_works_is_alive_and_ready() -> None:
    assert alive(vitals()) == []
    assert ready(vitals(), 1000.0) == []


def test_one_that_stands_by_is_ready() -> None:
    assert ready(vitals(role="standby", synced=False), 1000.0) == []


def test_a_late_loop_is_neither() -> None:
    assert "event loop" in alive(vitals(lag=30.0))[0]
    assert ready(vitals(lag=30.0), 1000.0)


def test_a_queue_that_nobody_works_off_is_first_not_ready_then_not_alive() -> None:
    late, dead = vitals(queue_age=lambda: 200.0), vitals(queue_age=lambda: 2000.0)
    assert alive(late) == []
    assert "waited 200 s" in ready(late, 1000.0)[0]
    assert alive(dead)


def test_one_that_has_not_listed_everything_is_not_ready() -> None:
    assert ready(vitals(synced=False), 1000.0)


def test_one_whose_every_reconciliation_fails_is_not_ready() -> None:
    failing = vitals()
    for now in (900.0, 930.0):
        failing.failed(now)
    assert ready(failing, 950.0) == []
    assert ready(failing, 1000.0) == ["no reconciliation has succeeded for 100 s"]
    assert alive(failing) == []
    failing.failing_since = None
    assert ready(failing, 1000.0) == []


def test_no_connection_of_a_scraper_outlives_its_answer() -> None:
    async def scrape() -> list[str | None]:
        runner = await serve(vitals(), Metrics(), "127.0.0.1", 0)
        try:
            host, port = runner.addresses[0]
            async with aiohttp.ClientSession() as session:
                answers = []
                for path in ("healthz", "readyz", "metrics"):
                    async with session.get(f"http://{host}:{port}/{path}") as answer:
                        answers.append(answer.headers.get("Connection"))
                return answers
        finally:
            await runner.cleanup()

    assert asyncio.run(scrape()) == ["close"] * 3
