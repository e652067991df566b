"""Looks at this machine: system, memory, devices, network and environments. Starts nothing but short questions."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ..local import launchers, preflight, shared_memory, stores
from ..local.addresses import can_bind
from ..local.errors import EnvironmentFault
from ..local.state import root
from .facts import Device, Environment, Link, MachineFacts

HUB = "https://huggingface.co"
_INFINIBAND = Path("/sys/class/infiniband")
_PEER_MEMORY = Path("/sys/module/nvidia_peermem")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_SECONDS = 3.0
_MIB = 2**20


async def of_machine(engine_python: str | None, router_python: str | None) -> MachineFacts:
    """What this machine has; never raises for what is missing."""
    linux = sys.platform == "linux"
    shm = shutil.disk_usage(shared_memory.FOLDER) if shared_memory.FOLDER.is_dir() else None
    devices, problem = await asyncio.to_thread(gpus)
    engine = await asyncio.to_thread(environment, engine_python, "KVSERVING_ENGINE_PYTHON")
    router = await asyncio.to_thread(environment, router_python, "KVSERVING_ROUTER_PYTHON")
    locked, files = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    store = stores.server()
    made = Path(sys.prefix).parent / ".venv-engine" / "bin" / "python"
    return MachineFacts(
        system=platform.system(),
        python=platform.python_version(),
        cpus=len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1,
        memory=preflight.available_memory() if linux else None,
        shm_size=shm.total if shm else None,
        shm_free=shm.free if shm else None,
        stale={str(path): size for path, size in shared_memory.unused().items()} if linux else {},
        disk_free=_disk_free(root()),
        devices=devices,
        device_problem=problem,
        links=links(_INFINIBAND),
        peer_memory=_PEER_MEMORY.is_dir(),
        memlock=-1 if locked == resource.RLIM_INFINITY else locked,
        open_files=2**31 if files == resource.RLIM_INFINITY else files,
        engine=engine,
        nearby=str(made) if made.is_file() else None,
        router=router,
        store=None if store is None else str(store),
        loopback=can_bind("127.64.0.1", 0) if linux else False,
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        reach=await reach(os.environ),
    )


def environment(option: str | None, variable: str) -> Environment:
    """What the Python that an option or a variable names has installed; ours without them."""
    try:
        path = launchers.choose(option, variable)
        found = launchers.inspect(path)
    except EnvironmentFault as fault:
        return Environment(option or os.environ.get(variable, sys.executable), str(fault))
    connector = launchers.CONNECTOR_MODULE in found.modules or launchers.own_connector() is not None
    return Environment(path, "", found.vllm, found.device, found.nixl, found.smg, found.vllm_router, connector)


def gpus() -> tuple[tuple[Device, ...], str]:
    """The GPUs that nvidia-smi lists, and why it lists none where it fails; none without the program."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return (), ""
    question = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, check=True, timeout=30)  # noqa: S603
    except subprocess.CalledProcessError as error:
        said = (error.stdout or error.stderr or "").strip().splitlines()
        return (), f"nvidia-smi failed: {said[0] if said else f'exit status {error.returncode}'}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"nvidia-smi failed: {type(error).__name__}"
    return tuple(filter(None, map(_device, answer.stdout.splitlines()))), ""


def _device(line: str) -> Device | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 3:
        return None
    name, memory, driver = parts
    return Device(name, int(memory) * _MIB if memory.isdecimal() else 0, driver)


def links(folder: Path) -> tuple[Link, ...]:
    """The RDMA ports below a folder such as ``/sys/class/infiniband``."""
    found = []
    for port in sorted(folder.glob("*/ports/*")):
        # As "4: ACTIVE".
        state = _line(port / "state").rpartition(":")[2].strip() or "UNKNOWN"
        name = f"{port.parents[1].name}:{port.name}"
        found.append(Link(name, state, _line(port / "link_layer"), _line(port / "rate")))
    return tuple(found)


def _line(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


async def reach(environ: Mapping[str, str]) -> dict[str, str]:
    """For the hub's address: why no connection can be made, empty where one can. Nothing is sent.

    Nothing is tried where the hub is not to be used, or a proxy stands before it.
    """
    offline = environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "TRUE", "YES", "ON")
    if offline or environ.get("HTTPS_PROXY") or environ.get("https_proxy"):
        return {}
    address = urlsplit(environ.get("HF_ENDPOINT") or HUB)
    host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
    shown = f"{host}:{port}"
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return {shown: f"no connection within {_SECONDS:.0f} s"}
    except OSError as error:
        return {shown: f"no connection: {error.strerror or error}"}
    writer.close()
    return {shown: ""}


def _disk_free(folder: Path) -> int | None:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
