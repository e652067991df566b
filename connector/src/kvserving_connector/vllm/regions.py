"""The files behind L1 in ``/dev/shm``: named after the pod, so that what a killed engine left is known and removed.

vLLM names them after a random engine id and unlinks them when the engine ends in order. A container that restarts
keeps its pod's ``/dev/shm``, and would find the room taken.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from kvserving_connector.settings import logger

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where vLLM puts them
_POD_CHARACTERS = 100
_RANK = re.compile(r"_dp\d+$")
# Without a dot: the name of another pod may begin with this one's and a dot.
_ENGINE = re.compile(r"[^.]+\.mmap")


def named(engine_id: str, pod: str) -> str:
    """Return the engine id for the region's name; ``engine_id`` itself where the pod has no name."""
    return f"{pod[:_POD_CHARACTERS]}.{engine_id}" if pod else engine_id


def remove_stale(engine_id: str, pod: str) -> None:
    """Remove the regions of the pod's earlier engines, which nothing has mapped any more.

    Regions of this engine, of its other data-parallel ranks too, and of other pods stay. What cannot be removed is
    left there with a warning: vLLM says so if the room is too small.
    """
    if not pod:
        return
    prefix = f"vllm_offload_{named('', pod)}"
    own = f"{prefix}{_RANK.sub('', engine_id)}"
    found = [
        path
        for path in SHARED_MEMORY.iterdir()
        if path.name.startswith(prefix)
        and not path.name.startswith(own)
        and _ENGINE.fullmatch(path.name.removeprefix(prefix))
        and _is_ours(path)
    ]
    if not found:
        return
    used = _used()
    for path in found:
        if str(path) in used:
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("KVServing tiers: the region file %s of an earlier engine stays: %s", path, error)
        else:
            logger.info("KVServing tiers: removed %s, the region of an earlier engine of this pod", path)


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _used() -> set[str]:
    """Return the regions that processes have open or mapped: one that starts opens its file before it maps it."""
    found: set[str] = set()
    for process in os.listdir("/proc"):
        if not process.isdigit():
            continue
        folder = Path("/proc", process)
        try:
            maps = (folder / "maps").read_text(errors="replace")
            found.update(line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/vllm_offload_" in line)
            found.update(os.readlink(entry) for entry in (folder / "fd").iterdir())
        except OSError:
            continue  # gone, or of another user
    return found
