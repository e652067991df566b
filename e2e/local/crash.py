"""Kill one engine under load and see what becomes of the requests and of the engine."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import aiohttp

from .asking import Texts, ask
from .load import clients
from .stage import Service, Stage

CLIENTS = 4
ENOUGH = 2 * CLIENTS
"""Served requests that make a phase: before the kill, and after the engine is back."""
PHASE_SECONDS = 120.0
SETTLE_SECONDS = 5.0
RECOVERY_SECONDS = 400.0


def kill_under_load(service: Service, stage: Stage, texts: Texts, role: str) -> None:
    """SIGKILL the first engine of ``role`` while clients stream.

    Asserts that no request hangs, that requests succeed while the engine is away where the role has another, that
    the executor restarts it and says so, and that the restarted engine takes part in transfers again.
    """
    victim = service.pods(role)[0]
    others = {pod["name"]: (pod["pid"], pod["restarts"]) for pod in service.state()["pods"] if pod != victim}

    def back(state: dict[str, Any]) -> bool:
        pod = next(pod for pod in state["pods"] if pod["name"] == victim["name"])
        return bool(pod["ready"]) and pod["pid"] != victim["pid"]

    async def main() -> str:
        async with clients(service.url, texts, CLIENTS) as account:
            await account.served(ENOUGH, PHASE_SECONDS)
            killed = time.monotonic()
            os.kill(victim["pid"], signal.SIGKILL)
            waiting = asyncio.create_task(
                asyncio.to_thread(service.wait, back, RECOVERY_SECONDS, f"{victim['name']} is back")
            )
            if len(service.pods(role)) > 1:
                await account.served(ENOUGH, PHASE_SECONDS, since=killed)
            account.ease()
            restart = await waiting
            during = account.count(since=killed)
            account.press()
            await asyncio.sleep(SETTLE_SECONDS)
            settled = time.monotonic()
            await account.served(ENOUGH, PHASE_SECONDS, since=settled)
        late = account.count(since=settled)
        total = account.count()
        assert total["hung"] == 0, f"{account.losses(killed)}\n{service.logs()}"
        if len(service.pods(role)) > 1:
            assert during["ok"] > total["failed"], (
                f"requests must succeed meanwhile:\n{account.losses(killed)}\n{service.logs()}"
            )
        assert late["ok"] == sum(late.values()) > 0, account.losses(settled)
        return (
            f"{sum(total.values())} requests, {total['failed']} failed before the first byte, {total['cut']} streams "
            f"cut, {total['hung']} hung, longest {account.slowest(killed)}, last failure "
            f"{account.recovered_after(killed):.1f} s after the kill, engine back after {restart:.0f} s"
        )

    numbers = asyncio.run(main())
    stage.numbers.append(f"{service.topology.name}, kill -9 of a {role} engine: {numbers}")

    after = {pod["name"]: pod for pod in service.state()["pods"]}
    assert after[victim["name"]]["restarts"] == victim["restarts"] + 1
    assert {name: (after[name]["pid"], after[name]["restarts"]) for name in others} == others, service.logs()
    status = stage.kvserving("status", service.name).stdout
    assert victim["name"] in status
    asyncio.run(_one_answer(service.url, texts))
    done = stage.kvserving("verify", service.name)
    assert done.returncode == 0, done.stdout


async def _one_answer(url: str, texts: Texts) -> None:
    async with aiohttp.ClientSession() as session:
        body = {"model": "tiny", "prompt": texts.of(64, seed=99), "max_tokens": 4, "return_token_ids": True}
        await ask(session, url, "/v1/completions", body)
