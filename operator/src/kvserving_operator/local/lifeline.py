"""What sees to it that nothing of a run outlives its owner, however the owner dies."""

from __future__ import annotations

import asyncio
import os
import subprocess

from . import killing, module, procfs


class Lifeline:
    """Held by the owner of the processes that carry the mark ``instance``; made before the first of them.

    Should the owner be killed, the reaper ends them. ``close`` kills what is left of them, and ends the reaper.
    """

    def __init__(self, instance: str) -> None:
        self._instance = instance
        reader, self._writer = os.pipe()
        self._reaper = subprocess.Popen(  # noqa: S603
            module.command("kvserving_operator.local.reaper", instance),
            stdin=reader, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=module.environment(), cwd="/",
        )  # fmt: skip
        os.close(reader)

    async def close(self) -> None:
        """Return when no process of the instance and no reaper is left."""
        await killing.kill_all_async(lambda: procfs.instance_processes(self._instance))
        os.close(self._writer)
        await asyncio.to_thread(self._reaper.wait)
