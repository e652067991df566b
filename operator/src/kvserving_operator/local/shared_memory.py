"""Shared memory of engines that were killed: vLLM unlinks its files in ``/dev/shm`` only when it ends in order.

One killed engine leaves hundreds of megabytes there, and with an L1 cache its whole size, until the machine restarts.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import procfs

FOLDER = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
_BLOCK = 512
"""Bytes of a block in ``st_blocks``, whatever the file system's own are."""
# Python's shared memory and semaphores, and vLLM's L1. Models and whatever else people keep there is not an engine's.
_OWN = re.compile(r"(psm_|sem\.mp-|vllm_offload_)[^/]*")


def used(pids: Iterable[int]) -> set[Path]:
    """Return the files that engines make in ``/dev/shm`` and that the processes have open or mapped.

    An engine that starts opens its file before it maps it, and closes it afterwards. Files are told by their numbers:
    who made a semaphore has it mapped by another name, which glibc removes.
    """
    numbers: set[tuple[int, int]] = set()
    for pid in pids:
        # Of open files first: one that is mapped and closed between the two looks is found by the second.
        numbers.update(_open(pid))
        numbers.update(_mapped(pid))
    return {path for path, number in _there() if number in numbers} if numbers else set()


def unused() -> dict[Path, int]:
    """Return what engines left in ``/dev/shm`` and no process of this user uses, with the bytes that it takes.

    Engines make most of their files larger than what they ever write: only what was written takes memory.
    """
    there = [path for path, _ in _there()]
    in_use = used(procfs.pids()) if there else set()
    found: dict[Path, int] = {}
    for path in there:
        with contextlib.suppress(OSError):  # gone meanwhile
            if path not in in_use:
                found[path] = path.stat().st_blocks * _BLOCK
    return found


def remove_unused(paths: set[Path]) -> None:
    """Remove those of the files that no process of this user has open or mapped; they need not exist.

    Files of other users stay.
    """
    if paths:
        for path in paths - used(procfs.pids()):
            with contextlib.suppress(PermissionError):
                path.unlink(missing_ok=True)


def _there() -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield what lies in ``/dev/shm`` as engines make it, with its number: device and inode."""
    for path in FOLDER.iterdir() if FOLDER.is_dir() else ():
        if _OWN.fullmatch(path.name):
            with contextlib.suppress(OSError):  # gone meanwhile
                found = path.stat()
                yield path, (found.st_dev, found.st_ino)


def _open(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the numbers of a process's open files there; nothing of one that is gone or of another user."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(descriptor := f"/proc/{pid}/fd/{entry}").startswith(f"{FOLDER}/"):
                    found = os.stat(descriptor)
                    yield found.st_dev, found.st_ino


def _mapped(pid: int) -> Iterator[tuple[int, int]]:
    """Yield the numbers of what a process has mapped there; nothing of one that is gone or of another user."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            *_, device, inode, path = (line.split(maxsplit=5) + [""] * 6)[:6]
            if path.startswith(f"{FOLDER}/"):
                major, _, minor = device.partition(":")
                yield os.makedev(int(major, 16), int(minor, 16)), int(inode)
