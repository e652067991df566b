"""How much memory of the host a process can still get."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

ROOT = Path("/")


def available(root: Path = ROOT) -> int:
    """Return MemAvailable in bytes, or less where the container's cgroup leaves less.

    Files lie below ``root``. Raises OSError or ValueError where the kernel does not tell it.
    """
    found = re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("/proc/meminfo has no MemAvailable")
    free = int(found[1]) * 1024
    group = root / "sys/fs/cgroup"
    # Without a bound, which reads "max", and in the root group, which has no such file, the host's own counts.
    with contextlib.suppress(OSError, ValueError):
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        cached = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
        free = min(free, limit - used + (int(cached[1]) if cached else 0))
    return max(0, free)
