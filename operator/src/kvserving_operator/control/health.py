"""Health that tells the truth: is the loop alive, is the queue worked off, does reconciling succeed.

``/healthz`` fails when the process should be restarted, ``/readyz`` when it does not do its
work, ``/metrics`` are the metrics. A thread measures the event loop's lag; a loop that stands
still answers no probe at all, which is an answer, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from .metrics import Metrics

log = logging.getLogger(__name__)

_QUEUE_LATE = 120.0
_LOOP_LATE = 10.0
_FAILING_LATE = 60.0
_PING = 1.0


@dataclass
class Vitals:
    """What health is judged by. Times are monotonic seconds, ``None`` where it has not happened."""

    role: str = "starting"
    """``starting``, ``standby`` (another holds the Lease), ``active`` or ``stopping``."""
    synced: bool = False
    queue_age: Callable[[], float] = field(default=lambda: 0.0)
    lag: float = 0.0
    standing_by: Callable[[], str] = field(default=lambda: "")
    """What keeps a process that stands by from being elected; empty when only another holder does."""
    failing_since: float | None = None
    """When the first of the reconciliations failed of which none has succeeded since."""

    def failed(self, now: float) -> None:
        """Take note of a reconciliation whose requests failed."""
        if self.failing_since is None:
            self.failing_since = now


def alive(vitals: Vitals) -> list[str]:
    """Return what speaks for a restart: nothing, where all is well."""
    found = []
    if vitals.lag > _LOOP_LATE:
        found.append(f"the event loop is {vitals.lag:.1f} s late")
    if vitals.role == "active" and vitals.queue_age() > 5 * _QUEUE_LATE:
        found.append(f"an object has waited {vitals.queue_age():.0f} s for a worker")
    return found


def ready(vitals: Vitals, now: float) -> list[str]:
    """Return why the operator does not do its work: nothing, where it does (or stands by)."""
    found = alive(vitals)
    if vitals.role in ("starting", "stopping"):
        found.append(f"the operator is {vitals.role}")
    if vitals.role == "standby" and (problem := vitals.standing_by()):
        found.append(problem)
    if vitals.role == "active" and not vitals.synced:
        found.append("the watches have not listed everything yet")
    if vitals.role == "active" and vitals.queue_age() > _QUEUE_LATE:
        found.append(f"an object has waited {vitals.queue_age():.0f} s for a worker")
    if vitals.role == "active" and vitals.failing_since is not None and now - vitals.failing_since > _FAILING_LATE:
        found.append(f"no reconciliation has succeeded for {now - vitals.failing_since:.0f} s")
    return found


class LagMeter:
    """A daemon thread that asks the event loop for an answer every second and notes how long it took."""

    def __init__(self, vitals: Vitals, metrics: Metrics) -> None:
        self._vitals = vitals
        self._metrics = metrics
        self._stopped = threading.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure ``loop`` until ``stop``."""
        threading.Thread(target=self._run, args=(loop,), name="loop-lag", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopped.wait(_PING):
            answered = threading.Event()
            started = time.monotonic()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return
            while not answered.wait(_PING):
                if self._stopped.is_set():
                    return
                self._note(time.monotonic() - started)
            self._note(time.monotonic() - started)

    def _note(self, lag: float) -> None:
        self._vitals.lag = lag
        self._metrics.loop_lag.set(lag)


async def serve(vitals: Vitals, metrics: Metrics, host: str, port: int) -> web.AppRunner:
    """Serve ``/healthz``, ``/readyz`` and ``/metrics``; ``cleanup`` of the result ends it. Raises ``OSError``."""

    def answer(problems: list[str]) -> web.Response:
        body: dict[str, Any] = {"ok": not problems, "role": vitals.role, "problems": problems}
        return web.Response(
            text=json.dumps(body) + "\n", status=503 if problems else 200, content_type="application/json"
        )

    async def healthz(_: web.Request) -> web.Response:
        return answer(alive(vitals))

    async def readyz(_: web.Request) -> web.Response:
        return answer(ready(vitals, time.monotonic()))

    async def metricsz(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    @web.middleware
    async def closing(request: web.Request, handler: Handler) -> web.StreamResponse:
        # A scraper's idle connection is a task, and kopf waits five seconds for every task when it ends.
        response = await handler(request)
        response.force_close()
        return response

    app = web.Application(middlewares=[closing])
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metricsz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    log.info("serving health and metrics on %s:%d", host, port)
    return runner
