"""The disk under a store that lies in a folder of this machine: whether it holds what the object asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..amounts import size

_LEAST_FREE = 2**20


@dataclass(frozen=True)
class StoreDisk:
    """The disk of the folder of a service's L2, in bytes: of all of it, and what is left for this user."""

    folder: str
    total: int
    free: int

    def short(self, wanted: int) -> str:
        """What to say where it cannot hold ``wanted`` bytes, the ``spec.cache.l2.size``, or is full; else empty."""
        if self.free >= _LEAST_FREE and self.total >= wanted:
            return ""
        return (
            f"L2 cannot grow to its size: the disk of {self.folder} has {size(self.free)} of {size(self.total)} left."
            " Free some of it, or put the folder on another one"
        )


def look(folder: str) -> StoreDisk | None:
    """The disk of that folder, which need not exist yet; None for no folder, and for one that cannot be asked."""
    if not folder:
        return None
    try:
        found = os.statvfs(nearest(Path(folder)))
    except OSError:
        return None
    return StoreDisk(folder, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    while not folder.exists():
        folder = folder.parent
    return folder
