"""Looks at a service that ``kvserving up`` runs on this machine: its state, and what its engines counted."""

from __future__ import annotations

import asyncio
import json

import aiohttp

from ..local.launchers import inspect
from ..local.state import PodState, State
from ..verify.legs import connection_failure
from .facts import Engine, Process, Series, ServiceFacts, Unread

_SECONDS = 10.0
_ENGINES = ("prefill", "decode")


async def of_service(state: State) -> ServiceFacts:
    """One service; an engine that does not answer is noted."""
    missed: list[Unread] = []
    engines: dict[str, Engine] = {}
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def ask(pod: PodState) -> None:
            url = f"http://{pod.address}:{pod.port}"
            try:
                async with session.get(f"{url}/metrics") as answer:
                    series = Series.parse(await answer.text())
                async with session.get(f"{url}/version") as answer:
                    version = json.loads(await answer.text()).get("version") if answer.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                reason = f"the counters cannot be read: {connection_failure(error)}"
                missed.append(Unread(pod.name, reason, f"`kvserving status {state.name}` shows whether it runs"))
                return
            engines[pod.name] = Engine(version, series)

        await asyncio.gather(*(ask(pod) for pod in state.pods if pod.role in _ENGINES and pod.ready))
    verification = state.verification
    installed = await asyncio.to_thread(inspect, state.engine_python)
    return ServiceFacts(
        name=state.name,
        phase=state.phase,
        message=state.message,
        revision=state.revision,
        version=installed.vllm,
        pods=tuple(
            Process(pod.name, pod.role, pod.phase, pod.ready, pod.restarts, pod.last_exit or "") for pod in state.pods
        ),
        verified=None if verification is None else bool(verification["ok"]),
        proof="" if verification is None else str(verification["lines"][-1]),
        engines=engines,
        unread=tuple(missed),
    )
