"""Programs that print credentials: run without a terminal and for a while at most, and ended with all they started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

SECONDS = 60.0
"""For which a program may run, and a login service be asked."""
_MOST = 2**20
_CHUNK = 2**16
_END_SECONDS = 1.0


class TooLong(Exception):
    """A program printed more than credentials could be."""


async def printed(command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Run ``command``; its exit status, and what it and all that it started have printed to standard output.

    Nobody can answer it: it has no terminal and no input, and what it prints to standard error goes nowhere. Raises
    ``OSError`` when it cannot be run, ``TypeError`` and ``ValueError`` for what is no command, ``TimeoutError`` after
    ``SECONDS``, and ``TooLong``. With the last two, and when it is cancelled, the program's process group is ended.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as source:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(writing)
        ended = False
        try:
            async with asyncio.timeout(SECONDS):
                found = await _read(source)
                status = await process.wait()
            ended = True
        finally:
            if not ended:
                await _end(process)
    return status, found


async def _read(source: object) -> bytes:
    """All of ``source``, once nobody holds its other end open."""
    loop = asyncio.get_running_loop()
    stream = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), source)
    found = bytearray()
    try:
        while chunk := await stream.read(_CHUNK):
            found += chunk
            if len(found) > _MOST:
                raise TooLong
    finally:
        transport.close()
    return bytes(found)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a program and its children. One that waits in the kernel takes no signal, and is not waited for."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
