"""Looks at this machine: system, memory, devices, network and environments. Starts nothing but short questions."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..api.v1alpha1 import Role
from ..local import client, processor, room, shared_memory, stores
from ..local.addresses import can_bind
from ..local.hub import reach
from ..local.state import LOST, DamagedState, State, root, services
from ..plan import ports
from . import gather_devices
from .facts_machine import Limits, MachineFacts
from .gather_environment import environment

_LISTEN = "127.0.0.1"
_POD = "127.64.0.1"
_PODS = 3
"""Those of the smallest service that moves KV: one prefill, one decode and a router."""
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


async def of_machine(engine_python: str | None, router_python: str | None) -> MachineFacts:
    """What this machine has; never raises for what is missing."""
    linux = sys.platform == "linux"
    shm = shutil.disk_usage(shared_memory.FOLDER) if shared_memory.FOLDER.is_dir() else None
    # Each asks a program that may take a second: they are asked together.
    (devices, problem), topology, driver, engine, router, reached = await asyncio.gather(
        asyncio.to_thread(gather_devices.gpus),
        asyncio.to_thread(gather_devices.topology),
        asyncio.to_thread(gather_devices.driver),
        asyncio.to_thread(environment, engine_python, "KVSERVING_ENGINE_PYTHON"),
        asyncio.to_thread(environment, router_python, "KVSERVING_ROUTER_PYTHON"),
        reach(os.environ),
    )
    store = stores.server()
    made = Path(sys.prefix).parent / ".venv-engine" / "bin" / "python"
    state_problem = state_fault(root())
    known, damaged = ([], {}) if state_problem else states()
    return MachineFacts(
        system=platform.system(),
        python=platform.python_version(),
        cpus=len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1,
        memory=room.available_memory() if linux else None,
        shm_size=shm.total if shm else None,
        shm_free=shm.free if shm else None,
        stale={str(path): size for path, size in shared_memory.unused().items()} if linux else {},
        disk_free=disk_free(root()),
        disk_needed=room.disk_needed(_PODS),
        devices=devices,
        device_problem=problem,
        links=gather_devices.links(),
        engine=engine,
        nearby=str(made) if made.is_file() else None,
        router=router,
        store=None if store is None else str(store),
        loopback=can_bind(_POD, 0) if linux else False,
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        reach=reached,
        limits=limits(gather_devices.ROOT) if linux else Limits(),
        driver=driver,
        topology=topology,
        instructions=processor.instructions(gather_devices.ROOT),
        verbs=gather_devices.verbs(),
        kernel=_kernel(platform.release()) if linux else None,
        state_problem=state_problem,
        running=tuple(state.name for state in known if state.supervised),
        lost=tuple(state.name for state in known if state.phase == LOST),
        damaged=damaged,
        busy=busy(known) if linux else (),
    )


def states() -> tuple[list[State], dict[str, str]]:
    """The services of this machine, and by the names of others why their state cannot be read. Nothing is written."""
    known: list[State] = []
    damaged: dict[str, str] = {}
    for directory in services():
        try:
            state = directory.look()
        except DamagedState:
            damaged[directory.name] = "holds no state"
        except OSError as error:
            damaged[directory.name] = f"cannot be read: {error.strerror or error}"
        else:
            known += [] if state is None else [client.as_now(state)]
    return known, damaged


def limits(folder: Path) -> Limits:
    """The bounds of this process and of its container, whose files lie below ``folder``."""
    locked, files = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # Root's processes are not counted.
    own = resource.getrlimit(resource.RLIMIT_NPROC)[0] if os.geteuid() else resource.RLIM_INFINITY
    bounds = [] if own == resource.RLIM_INFINITY else [own]
    for file in ("sys/fs/cgroup/pids.max", "sys/fs/cgroup/pids/pids.max"):
        bounds += [int(text) for text in (_text(folder / file).strip(),) if text.isdecimal()]
    mode = _text(folder / "proc/sys/vm/overcommit_memory").strip()
    return Limits(
        memlock=-1 if locked == resource.RLIM_INFINITY else locked,
        open_files=2**31 if files == resource.RLIM_INFINITY else files,
        tasks=min(bounds, default=None),
        overcommit=int(mode) if mode.isdecimal() else 0,
    )


def state_fault(folder: Path) -> str:
    """Why a service could not keep its state below ``folder``; empty where it could. Nothing is written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is no folder"
    if not os.access(folder, os.R_OK):
        return f"{folder} may not be read"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} may not be written to"


def busy(known: Sequence[State]) -> tuple[str, ...]:
    """Addresses that a first service would take, and that a program has which is none of the services ``known``."""
    side_channel = ports.side_channel("prefill", Role())
    wanted = [(_LISTEN, ports.ROUTER_HTTP), (_POD, ports.ENGINE_HTTP), (_POD, side_channel)]
    if any(state.supervised for state in known):
        wanted = [(host, port) for host, port in wanted if host == _POD]
    ours = {pod.address for state in known for pod in state.pods}
    return tuple(f"{host}:{port}" for host, port in wanted if host not in ours and not can_bind(host, port))


def _kernel(release: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def disk_free(folder: Path) -> int | None:
    """Bytes that are free where ``folder`` is, or is to be; ``None`` where that cannot be told."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
