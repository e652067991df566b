"""The memory that the state shows of a pod."""

from __future__ import annotations

import asyncio
import os
import signal

from kvserving_operator.local.state import ServiceDir

from .support import Service, deployment, pod, run_of


def test_a_pod_that_waits_for_its_next_start_has_no_memory(directory: ServiceDir) -> None:
    async def go() -> None:
        async with Service(run_of(deployment("decode"), first_pause=2.0), directory) as service:
            state = await service.until(lambda s: pod(s, "decode").memory > 0)
            os.kill(pod(state, "decode").pid, signal.SIGKILL)
            waits = await service.until(lambda s: pod(s, "decode").phase == "Restarting")
            assert (pod(waits, "decode").pid, pod(waits, "decode").memory) == (None, 0)

    asyncio.run(go())
