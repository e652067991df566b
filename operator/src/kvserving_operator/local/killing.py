"""Killing the processes of a program so that its shared memory goes with them.

Python's resource tracker knows every piece of shared memory and every semaphore from the moment it is made, and removes
them when the processes that made them are gone. Killed with them, it leaves what nobody can tell any more.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from . import procfs, waiting

_TRACKER_SECONDS = 5.0
"""A tracker ends at once when it is alone; one that does not is killed as well."""
_KILLED_SECONDS = 5.0


def kill_all(find: Callable[[], Sequence[int]]) -> None:
    """Kill what ``find`` gives until it gives nothing, resource trackers last and only where they do not end."""
    while left := list(find()):
        if others := _without_trackers(left):
            procfs.send(others, signal.SIGKILL)
            waiting.all_gone(others, _KILLED_SECONDS)
        elif not waiting.all_gone(left, _TRACKER_SECONDS):
            procfs.send(left, signal.SIGKILL)
            waiting.all_gone(left, _KILLED_SECONDS)


async def kill_all_async(find: Callable[[], Sequence[int]]) -> None:
    """As ``kill_all``, without blocking the event loop."""
    while left := list(await asyncio.to_thread(find)):
        if others := _without_trackers(left):
            procfs.send(others, signal.SIGKILL)
            await waiting.all_gone_async(others, _KILLED_SECONDS)
        elif not await waiting.all_gone_async(left, _TRACKER_SECONDS):
            procfs.send(left, signal.SIGKILL)
            await waiting.all_gone_async(left, _KILLED_SECONDS)


def _without_trackers(pids: Sequence[int]) -> list[int]:
    trackers = procfs.trackers(pids)
    return [pid for pid in pids if pid not in trackers]
