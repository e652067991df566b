"""Looks at the GPUs and RDMA ports of this machine: by nvidia-smi, the driver's library, /proc and /sys."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

from .facts_machine import Device, Driver, Link, Topology

ROOT = Path("/")
_MIB = 2**20
_SECONDS = 30
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_LIBRARY = "libcuda.so.1"
# Linux cuts the names of processes after 15 characters.
_MANAGER = "nv-fabricmanager"[:15]


def gpus() -> tuple[tuple[Device, ...], str]:
    """The GPUs that nvidia-smi lists, and why it lists none where it fails; none without the program."""
    answer, problem = _smi("--query-gpu=name,memory.total,driver_version,memory.free,mig.mode.current",
                           "--format=csv,noheader,nounits")  # fmt: skip
    return tuple(filter(None, map(_device, answer.splitlines()))), problem


def topology() -> Topology:
    """How the GPUs reach each other and the network; empty where nvidia-smi does not tell."""
    peers, _ = _smi("topo", "-p2p", "r")
    paths, _ = _smi("topo", "-m")
    return Topology(matrix(peers), matrix(paths))


def _smi(*arguments: str) -> tuple[str, str]:
    """What nvidia-smi prints, and why nothing where it fails; neither without the program."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "", ""
    try:
        answer = subprocess.run([tool, *arguments], capture_output=True, text=True, check=True, timeout=_SECONDS)  # noqa: S603
    except subprocess.CalledProcessError as error:
        said = (error.stdout or error.stderr or "").strip().splitlines()
        return "", f"nvidia-smi failed: {said[0] if said else f'exit status {error.returncode}'}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"nvidia-smi failed: {type(error).__name__}"
    return answer.stdout, ""


def _device(line: str) -> Device | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 5:
        return None
    name, memory, driver, free, mig = parts
    size = int(memory) * _MIB if memory.isdecimal() else 0
    return Device(name, size, driver, int(free) * _MIB if free.isdecimal() else None, mig == "Enabled")


def matrix(text: str) -> dict[tuple[str, str], str]:
    """The cells of a matrix that nvidia-smi prints, by row and column, those of a device with itself left out."""
    # Headings are underlined where it takes the output for a terminal.
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    heads = next((words for words in lines if words and _named(words[0])), [])
    columns = [word for word in heads if _named(word)]
    found = {}
    for words in lines:
        if words != heads and words and words[0] in columns:
            for column, word in zip(columns, words[1:], strict=False):
                if column != words[0]:
                    found[words[0], column] = word
    return found


def _named(word: str) -> bool:
    return re.fullmatch(r"(GPU|NIC)[0-9]+", word) is not None


def driver(root: Path = ROOT) -> Driver:
    """What the driver of this machine is, from the kernel's files below ``root`` and from its library."""
    module = _line(root / "proc/driver/nvidia/version")
    switches = len(list((root / "dev").glob("nvidia-nvswitch[0-9]*")))
    names = (_line(file) for file in (root / "proc").glob("[0-9]*/comm")) if switches else ()
    return Driver(
        cuda=cuda() if module else None,
        cards=sum(_is_card(device) for device in (root / "sys/bus/pci/devices").glob("*")),
        loaded=bool(module),
        open="Open Kernel Module" in module,
        switches=switches,
        manager=_MANAGER in names,
        peer_memory=(root / "sys/module/nvidia_peermem").is_dir(),
    )


def _is_card(device: Path) -> bool:
    return _line(device / "vendor") == _NVIDIA and _line(device / "class").startswith(_DISPLAY)


def cuda(library: str = _LIBRARY) -> tuple[int, int] | None:
    """The newest CUDA that the driver's library runs; ``None`` where there is no such library. No GPU is touched."""
    version = ctypes.c_int(0)
    try:
        ask = ctypes.CDLL(library).cuDriverGetVersion
    except (OSError, AttributeError):
        return None
    if ask(ctypes.byref(version)) != 0:
        return None
    # As 13000, or 12080 for 12.8.
    return version.value // 1000, version.value % 1000 // 10


def links(root: Path = ROOT) -> tuple[Link, ...]:
    """The RDMA ports in the kernel's files below ``root``."""
    found = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        # As "4: ACTIVE".
        state = _line(port / "state").rpartition(":")[2].strip() or "UNKNOWN"
        name, layer = f"{port.parents[1].name}:{port.name}", _line(port / "link_layer")
        routable = _routable(port) if layer == "Ethernet" and state == "ACTIVE" else None
        found.append(Link(name, state, layer, _line(port / "rate"), routable))
    return tuple(found)


def _routable(port: Path) -> bool:
    """Whether a port has an address of RoCE v2 that is not of its own link alone."""
    for kind in (port / "gid_attrs/types").glob("*"):
        address = _line(port / "gids" / kind.name)
        if _line(kind) == "RoCE v2" and address.strip("0:") and not address.startswith("fe80"):
            return True
    return False


def verbs(root: Path = ROOT) -> bool:
    """Whether programs of this user may open an RDMA device."""
    files = (root / "dev/infiniband").glob("uverbs*")
    return any(os.access(file, os.R_OK | os.W_OK) for file in files)


def _line(file: Path) -> str:
    """The first line of one of the kernel's files; empty where there is none or it may not be read."""
    try:
        return (file.read_text().splitlines() or [""])[0].strip()
    except OSError:
        return ""
