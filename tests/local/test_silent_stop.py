"""The stop of a service whose engine answers nothing: what cannot drain is not waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kvserving_operator.local import shared_memory, supervisor
from kvserving_operator.local.state import ServiceDir, State

from .support import Service, deployment, nothing_left, pod, probe, run_of

_LONG = 600


def ready(state: State) -> bool:
    return state.phase == "Ready"


def patient(role: str) -> dict[str, Any]:
    """An engine with a long grace whose hook waits for longer than a test may take."""
    hook = {"preStop": {"exec": {"command": [sys.executable, "-c", f"import time; time.sleep({_LONG})"]}}}
    found = deployment(role, livenessProbe=probe(), lifecycle=hook)
    found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = _LONG
    return found


def test_an_engine_that_stands_still_is_not_waited_for_when_the_service_stops(directory: ServiceDir) -> None:
    async def go() -> None:
        run = run_of(patient("prefill"), deployment("decode"), deployment("router"))
        async with Service(run, directory) as service:
            state = await service.until(ready)
            service.supervisor.request_stop()
            await service.until(lambda state: pod(state, "prefill").phase == "Stopping")
            os.kill(pod(state, "prefill").pid, signal.SIGSTOP)
            await asyncio.wait_for(asyncio.shield(service.task), 60)
        assert nothing_left([state.instance])
        said = (directory.logs / "svc-prefill-0.log").read_text()
        assert "svc-prefill-0 is not waited for: no answer within 2 s" in said

    asyncio.run(go())


def test_a_stop_goes_on_to_tell_what_it_waits_for_while_the_kernel_lets_a_look_at_processes_wait(
    directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, waits = threading.Event(), threading.Event()
    used = shared_memory.used

    def look(pids: Iterable[int]) -> set[Path]:
        if service.supervisor.stopped_by is not None:
            waits.set()
            released.wait(30)
        return used(pids)

    monkeypatch.setattr(supervisor, "_MEASURE_SECONDS", 0.05)
    service = Service(run_of(deployment("prefill"), deployment("decode")), directory)

    async def go() -> None:
        async with service:
            state = await service.until(ready)
            monkeypatch.setattr(shared_memory, "used", look)
            service.supervisor.request_stop()
            await asyncio.to_thread(waits.wait, 30)
            before = len(service.states)
            async with asyncio.timeout(20):
                while len(service.states) < before + 20:
                    await asyncio.sleep(0.01)
            assert {state.phase for state in service.states[before:]} == {"Stopping"}
            released.set()
            await asyncio.wait_for(asyncio.shield(service.task), 60)
        assert nothing_left([state.instance])

    asyncio.run(go())
