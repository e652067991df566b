"""Looks at a service that ``kvserving up`` runs on this machine: its state, and what its engines counted."""

from __future__ import annotations

import asyncio
import json

import aiohttp

from ..local.errors import EnvironmentFault
from ..local.launchers import inspect
from ..local.state import PodState, State
from ..verify.legs import connection_failure
from .facts import Engine, Process, Series, ServiceFacts, Unread

_SECONDS = 10.0
_ENGINES = ("prefill", "decode")


async def of_service(state: State) -> ServiceFacts:
    """One service; what does not answer is noted: an engine, or the Python of the engines."""
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
                    said = json.loads(await answer.text()) if answer.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
                reason = f"the counters cannot be read: {connection_failure(error)}"
                missed.append(Unread(pod.name, reason, f"`kvserving status {state.name}` shows whether it runs"))
                return
            version = said.get("version") if isinstance(said, dict) else None
            engines[pod.name] = Engine(version if isinstance(version, str) else None, series)

        await asyncio.gather(*(ask(pod) for pod in state.pods if pod.role in _ENGINES and pod.ready))
    verification = state.verification
    try:
        installed = (await asyncio.to_thread(inspect, state.engine_python)).vllm
    except EnvironmentFault as fault:
        installed = None
        fix = f"`kvserving down {state.name}`, and bring it up with an engines' Python that is there"
        missed.append(Unread("the engines' Python", str(fault), fix))
    return ServiceFacts(
        name=state.name,
        phase=state.phase,
        message=state.message,
        revision=state.revision,
        version=installed,
        pods=tuple(
            Process(pod.name, pod.role, pod.phase, pod.ready, pod.restarts, pod.last_exit or "") for pod in state.pods
        ),
        verified=None if verification is None else bool(verification["ok"]),
        proof="" if verification is None else str(verification["lines"][-1]),
        engines=engines,
        unread=tuple(missed),
    )
