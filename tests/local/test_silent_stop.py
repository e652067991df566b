"""The stop of a service whose engine answers nothing: what cannot drain is not waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

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
