"""Waiting for the end of processes that are not our children, by the kernel's notice of it."""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Iterable


def all_gone(pids: Iterable[int], timeout: float) -> bool:
    """Block until all of ``pids`` have ended, at most ``timeout`` seconds; whether they have."""
    descriptors = _open(pids)
    deadline = time.monotonic() + timeout
    try:
        waiting = set(descriptors)
        poll = select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        while waiting:
            remaining = deadline - time.monotonic()
            ended = poll.poll(max(0.0, remaining) * 1000)
            for descriptor, _ in ended:
                poll.unregister(descriptor)
                waiting.discard(descriptor)
            if not ended and remaining <= 0:
                return False
        return True
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


async def all_gone_async(pids: Iterable[int], timeout: float) -> bool:
    """As ``all_gone``, without blocking the event loop."""
    loop = asyncio.get_running_loop()
    descriptors = _open(pids)
    done = asyncio.Event()
    waiting = set(descriptors)
    if not waiting:
        return True

    def ended(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        waiting.discard(descriptor)
        if not waiting:
            done.set()

    for descriptor in descriptors:
        loop.add_reader(descriptor, ended, descriptor)
    try:
        async with asyncio.timeout(timeout):
            await done.wait()
    except TimeoutError:
        return False
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return True


def _open(pids: Iterable[int]) -> list[int]:
    descriptors = []
    for pid in pids:
        try:
            descriptors.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    return descriptors
