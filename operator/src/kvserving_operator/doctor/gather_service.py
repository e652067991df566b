"""Looks at a service that ``kvserving up`` runs on this machine: its state, and what its engines counted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import TypeVar

import aiohttp

from ..local import proof, storedisk
from ..local.errors import EnvironmentFault
from ..local.launchers import inspect
from ..local.logfile import has_log_end, in_short
from ..local.state import FAILED, PodState, State, root
from ..verify.legs import connection_failure
from .facts import Disk, Engine, Process, Series, ServiceFacts, Unread
from .gather_machine import disk_free

T = TypeVar("T")
_SECONDS = 10.0
_ENGINES = ("prefill", "decode")


async def _read(answer: aiohttp.ClientResponse, kind: str, parse: Callable[[str], T]) -> T:
    """What ``parse`` makes of an answer. Raises ``ValueError`` with what was asked and what came, none of its text."""
    try:
        if answer.status == 200:
            return parse(await answer.text())
    except (ValueError, RecursionError):
        pass
    came = f"an answer {answer.status} of {answer.content_type}"
    raise ValueError(f"GET {answer.url.path} of port {answer.url.port} gave {came}, which is no {kind}")


async def of_service(state: State) -> ServiceFacts:
    """One service; what does not answer is noted: an engine, or the Python of the engines."""
    missed: list[Unread] = []
    engines: dict[str, Engine] = {}
    async with aiohttp.ClientSession() as session:

        async def ask(pod: PodState) -> None:
            url = f"http://{pod.address}:{pod.port}"
            try:
                async with asyncio.timeout(_SECONDS):
                    async with session.get(f"{url}/metrics") as answer:
                        series = await _read(answer, "Prometheus text", Series.parse)
                    async with session.get(f"{url}/version") as answer:
                        said = await _read(answer, "JSON", json.loads) if answer.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                late = isinstance(error, TimeoutError)
                reason = f"no answer within {_SECONDS:.0f} s" if late else connection_failure(error)
                fix = f"`kvserving status {state.name}` shows whether it runs"
                missed.append(Unread(pod.name, f"the counters cannot be read: {reason}", fix))
                return
            version = said.get("version") if isinstance(said, dict) else None
            engines[pod.name] = Engine(version if isinstance(version, str) else None, series)

        async def installed() -> str | None:
            try:
                return (await asyncio.to_thread(inspect, state.engine_python, _SECONDS)).vllm
            except EnvironmentFault as fault:
                fix = f"`kvserving down {state.name}`, and bring it up with an engines' Python that is there"
                missed.append(Unread("the engines' Python", str(fault), fix))
                return None

        # All are asked at once, so that the whole takes no longer than the slowest of them may.
        asked = [ask(pod) for pod in state.pods if pod.role in _ENGINES and pod.ready]
        version, *_ = await asyncio.gather(installed(), *asked)
    verification, now = state.verification, time.time()
    disk = storedisk.look(state.store_folder)
    return ServiceFacts(
        name=state.name,
        phase=state.phase,
        message=" ".join(in_short(state.message)) if state.phase == FAILED else state.message,
        revision=state.revision,
        version=version,
        pods=tuple(
            Process(
                pod.name,
                pod.role,
                pod.phase,
                pod.ready,
                pod.restarts,
                pod.last_exit or "",
                pod.notable,
                pod.early,
                pod.losses,
                max(0.0, now - pod.since) if pod.since else 0.0,
                pod.loaded,
            )
            for pod in state.pods
        ),
        verified=None if verification is None else bool(verification["ok"]),
        proof="" if verification is None else str(verification["lines"][-1]),
        caveat=proof.caveat(state, now),
        engines=engines,
        unread=tuple(missed),
        explained=has_log_end(state.message),
        silent=max(0.0, now - state.updated),
        disk_free=disk_free(root()),
        disk=None if disk is None else Disk(disk.folder, disk.total, disk.free),
        store_size=state.store_size,
    )
