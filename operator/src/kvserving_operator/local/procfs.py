"""What /proc says about processes: identity, memory, and which belong to a run of a service."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

INSTANCE = "KVSERVING_INSTANCE"
"""Environment variable that every process of a run carries; its value is unique to the run."""


_TRACKER = b"from multiprocessing.resource_tracker import main"


def pids() -> Iterator[int]:
    """Yield the processes of the machine without this one."""
    own = os.getpid()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != own:
            yield int(entry)


def start_time(pid: int) -> int | None:
    """Start of ``pid`` in clock ticks since boot, or None when there is no such process or it is a zombie.

    A pid together with this value names a process for as long as the machine is up.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def is_running(pid: int | None, started: int | None) -> bool:
    """Whether the process that had ``pid`` and ``started`` still runs."""
    return pid is not None and started is not None and start_time(pid) == started


def instance_processes(instance: str) -> list[int]:
    """Processes of this user that carry the mark of the run ``instance``, zombies left out."""
    mark = f"{INSTANCE}={instance}".encode()
    return [pid for pid in pids() if mark in _environ(pid) and start_time(pid) is not None]


def session_processes(session: int) -> list[int]:
    """Processes of the session whose leader is ``session``, zombies left out."""
    found = []
    for pid in pids():
        fields = _stat(pid)
        if fields is not None and fields[0] not in "ZX" and int(fields[3]) == session:
            found.append(pid)
    return found


def trackers(pids: Iterable[int]) -> set[int]:
    """Those of the processes that are Python's resource trackers: each removes the shared memory and semaphores that
    its program made once all processes of that have ended, however they did, and then ends.
    """
    return {pid for pid in pids if _TRACKER in _cmdline(pid)}


def memory_bytes(pids: list[int]) -> int:
    """Memory of the processes in bytes; a page that several share is counted once in all."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # gone between the listing and the read
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def memory_kills() -> int | None:
    """How many processes the kernel has killed for want of memory since it runs; None where it does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes of which some may be gone by now."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; the name before it may hold any character."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
