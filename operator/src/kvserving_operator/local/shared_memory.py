"""Shared memory of engines that were killed: vLLM unlinks its files in ``/dev/shm`` only when it ends in order.

One killed engine leaves hundreds of megabytes there, and with an L1 cache its whole size, until the machine restarts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from . import procfs

FOLDER = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux


def mapped(pids: Iterable[int]) -> set[Path]:
    """Return the files in ``/dev/shm`` that the processes have mapped and that still have their names."""
    found: set[Path] = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            continue  # gone, or of another user
        names = (line.partition(f"{FOLDER}/")[2] for line in maps.splitlines())
        found.update(FOLDER / name for name in names if name and not name.endswith(" (deleted)"))
    return found


def remove_unused(paths: set[Path]) -> None:
    """Remove those of the files that no process of this user has mapped; they need not exist."""
    if paths:
        for path in paths - mapped(procfs.pids()):
            path.unlink(missing_ok=True)
