"""The control group that holds everything pods run: how their processes are found, and ended, whatever started them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.layout import CGROUP

_POLL = 0.05


def hierarchies(mounts: str | None = None) -> list[Path]:
    """Return where the machine's hierarchies are mounted, those of version 1 first.

    Beside version 1, systemd's own of version 2 may be there; a container runtime makes groups in it, too.
    ``mounts`` is the text of ``/proc/self/mountinfo``.
    """
    lines = (mounts if mounts is not None else Path("/proc/self/mountinfo").read_text()).splitlines()
    found: dict[str, list[Path]] = {"cgroup": [], "cgroup2": []}
    for line in lines:
        before, _, after = line.partition(" - ")
        kind = after.split(" ")[0]
        if kind in found:
            found[kind].append(Path(before.split(" ")[4]))
    return found["cgroup"] + found["cgroup2"]


def create() -> None:
    """Make the group in every hierarchy; the kubelet wants its root to be there."""
    for hierarchy in hierarchies():
        group = hierarchy / CGROUP
        group.mkdir(exist_ok=True)
        # A new group of version 1 has neither cores nor memory nodes, and takes no process.
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (file := group / name).is_file() and not file.read_text().strip():
                file.write_text((hierarchy / name).read_text())


def processes(pod: str = "") -> list[int]:
    """Return the processes in the group and below it; those of one pod where its UID is given."""
    found: set[int] = set()
    for group in (group for group in _groups() if pod in str(group)):
        try:
            found.update(int(line) for line in (group / "cgroup.procs").read_text().split())
        except FileNotFoundError:
            # A container that ended takes its group with it.
            continue
    return sorted(found)


def end(timeout: float = 20) -> None:
    """Kill every process of the group and return when none is left. Raises ``TimeoutError``."""
    deadline = time.monotonic() + timeout
    while found := processes():
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of pods do not end: {found}")
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_POLL)


def remove() -> None:
    """Remove the groups, the innermost first; they must hold no process."""
    for group in _groups():
        group.rmdir()


def _groups() -> Iterator[Path]:
    """Every group of ours, the innermost first."""
    for hierarchy in hierarchies():
        for folder, _, _ in os.walk(hierarchy / CGROUP, topdown=False):
            yield Path(folder)
