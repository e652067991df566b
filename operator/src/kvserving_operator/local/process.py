"""One process of a pod: started in a session of its own, its output taken to a log, and ended with all its children."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from ..listing import count
from . import killing, procfs, shared_memory
from .container import ProcessSpec
from .logfile import LogFile

_LAUNCH = str(Path(__file__).with_name("launch.py"))

_LOOK_SECONDS = 10.0
"""A look at processes that takes longer is done without."""


class Managed:
    """A running process. Use ``start``; ``ended`` resolves to the exit code (negative: the signal)."""

    def __init__(self, process: asyncio.subprocess.Process, output: asyncio.Task[None]) -> None:
        self._process = process
        self._output = output
        self.pid = process.pid
        self.start_time = procfs.start_time(process.pid)
        self.ended: asyncio.Task[int] = asyncio.create_task(process.wait())
        self._shared: set[Path] = set()
        self._kills = procfs.memory_kills()

    @classmethod
    async def start(cls, spec: ProcessSpec, log: LogFile, folder: Path) -> Managed:
        """Start the process in ``folder``. It gets SIGTERM when this process dies.

        Must run in the main thread: the kernel counts the end of the starting thread as the
        death of the starter.
        """
        reader, writer = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), *spec.argv,
                env=dict(spec.env), cwd=folder, stdin=asyncio.subprocess.DEVNULL, stdout=writer, stderr=writer,
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return cls(process, asyncio.create_task(_copy(reader, log)))

    async def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, as to the first process of a container.

        Its shared memory is noted before: of a semaphore that it alone has mapped nobody knows once it has ended.
        """
        await self._note()
        procfs.send([self.pid], number)

    @property
    def end(self) -> str:
        """How it ended, in words; only once ``ended`` is done."""
        after = procfs.memory_kills()
        kills = None if after is None or self._kills is None else after - self._kills
        return describe_exit(self.ended.result(), kills)

    def members(self) -> list[int]:
        """The process and those it started, as far as they stayed in its session."""
        return procfs.session_processes(self.pid)

    async def measure(self) -> int:
        """Return the memory of the members in bytes, and note their shared memory: once killed, nobody tells it."""
        await self._note()
        return await asyncio.to_thread(lambda: procfs.memory_bytes(self.members()))

    async def _note(self) -> None:
        """Note the shared memory of the members, as far as they can be looked at in time.

        In a thread: where memory is short, the kernel lets a look at a process wait for as long as that one waits.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                self._shared |= await asyncio.to_thread(lambda: shared_memory.used(self.members()))

    async def finish(self) -> None:
        """Kill what is left of the session, take the rest of the output, and remove its shared memory."""
        await self._note()
        await killing.kill_all_async(self.members)
        await asyncio.to_thread(shared_memory.remove_unused, self._shared)
        await self.ended
        try:
            async with asyncio.timeout(1.0):
                await self._output
        except TimeoutError:
            pass  # a process outside the session still holds the pipe; its output is not ours to wait for


def describe_exit(code: int, kills: int | None = None) -> str:
    """An exit code in words. ``kills``: how many processes the kernel has killed meanwhile for want of memory."""
    if code >= 0:
        return f"exit status {code}"
    name = signal.Signals(-code).name
    if name != "SIGKILL":
        return f"killed by {name}"
    if kills is None:
        return f"killed by {name} (often: out of memory)"
    if kills:
        return f"killed by {name} (out of memory: the kernel killed {count(kills, 'process')} meanwhile)"
    return f"killed by {name} (from outside; the kernel killed nothing for want of memory)"


async def _copy(descriptor: int, log: LogFile) -> None:
    loop = asyncio.get_running_loop()
    stream = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        while data := await stream.read(65536):
            log.write(data)
    finally:
        transport.close()
