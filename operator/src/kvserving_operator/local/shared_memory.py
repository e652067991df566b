"""Shared memory of engines that were killed: vLLM unlinks its files in ``/dev/shm`` only when it ends in order.

One killed engine leaves hundreds of megabytes there, and with an L1 cache its whole size, until the machine restarts.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path

from . import procfs

FOLDER = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
_BLOCK = 512
"""Bytes of a block in ``st_blocks``, whatever the file system's own are."""
# Python's shared memory and semaphores, and vLLM's L1. Models and whatever else people keep there is not an engine's.
_OWN = re.compile(r"(psm_|sem\.mp-|vllm_offload_)[^/]*")


def mapped(pids: Iterable[int]) -> set[Path]:
    """Return the files that engines make in ``/dev/shm`` and that the processes have mapped under their names."""
    found: set[Path] = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            continue  # gone, or of another user
        names = (line.partition(f"{FOLDER}/")[2] for line in maps.splitlines())
        found.update(FOLDER / name for name in names if _OWN.fullmatch(name) and not name.endswith(" (deleted)"))
    return found


def unused() -> dict[Path, int]:
    """Return what engines left in ``/dev/shm`` and no process of this user has mapped, with the bytes that it takes.

    Engines make most of their files larger than what they ever write: only what was written takes memory.
    """
    there = [path for path in FOLDER.iterdir() if _OWN.fullmatch(path.name)] if FOLDER.is_dir() else []
    used = mapped(procfs.pids()) if there else set()
    found: dict[Path, int] = {}
    for path in there:
        with contextlib.suppress(OSError):  # gone meanwhile
            if path not in used:
                found[path] = path.stat().st_blocks * _BLOCK
    return found


def remove_unused(paths: set[Path]) -> None:
    """Remove those of the files that no process of this user has mapped; they need not exist.

    Files of other users stay.
    """
    if paths:
        for path in paths - mapped(procfs.pids()):
            with contextlib.suppress(PermissionError):
                path.unlink(missing_ok=True)
