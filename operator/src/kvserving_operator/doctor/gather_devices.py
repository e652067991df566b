"""Looks at the GPUs and RDMA ports of this machine: by nvidia-smi, the driver's library, /proc and /sys."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ..api.types import quoted
from .facts_machine import Device, Driver, Link, Topology

ROOT = Path("/")
_MIB = 2**20
_SECONDS = 10.0
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_LIBRARY = "libcuda.so.1"
# Linux cuts the names of processes after 15 characters.
_MANAGER = "nv-fabricmanager"[:15]


def gpus() -> tuple[tuple[Device, ...], str]:
    """The GPUs that nvidia-smi lists, and what is wrong with its answer; neither without the program."""
    answer, problem = _smi("--query-gpu=name,memory.total,driver_version,memory.free,mig.mode.current",
                           "--format=csv,noheader,nounits")  # fmt: skip
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    found = [_device(line) for line in lines]
    strange = [line for line, device in zip(lines, found, strict=True) if device is None]
    if strange:
        more = f" and {len(strange) - 1} more such lines" if len(strange) > 1 else ""
        problem = f"nvidia-smi lists what is no GPU: {quoted(strange[0])}{more}"
    return tuple(filter(None, found)), problem


def topology() -> Topology:
    """How the GPUs reach each other and the network; empty where nvidia-smi does not tell."""
    # Each may take its full time where the driver hangs: they are asked at once.
    with ThreadPoolExecutor() as at_once:
        peers, paths = at_once.map(lambda asked: _smi("topo", *asked)[0], (("-p2p", "r"), ("-m",)))
    return Topology(matrix(peers), matrix(paths))


def _smi(*arguments: str) -> tuple[str, str]:
    """What nvidia-smi prints, and why nothing where it fails; neither without the program."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "", ""
    try:
        process = subprocess.Popen(  # noqa: S603
            [tool, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return "", f"nvidia-smi cannot be run: {error.strerror or error} ({tool})"
    try:
        answer, errors = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        _end(process)
        return "", f"nvidia-smi does not answer within {_SECONDS:.0f} s"
    if process.returncode != 0:
        said = (answer or errors).strip().splitlines()
        return "", f"nvidia-smi failed: {said[0] if said else f'exit status {process.returncode}'}"
    return answer, ""


def _end(process: subprocess.Popen[str]) -> None:
    """End a program and its children; one that waits in the driver takes no signal, and is not waited for."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)


def _device(line: str) -> Device | None:
    """The GPU of one line; ``None`` where the line is no such."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 5 or not parts[0]:
        return None
    name, memory, driver, free, mig = parts
    numbers = (_number(memory), _number(free))
    if "" in numbers or not (re.fullmatch(r"[0-9]+(\.[0-9]+)*", driver) or _untold(driver)):
        return None
    if mig not in ("Enabled", "Disabled") and not _untold(mig):
        return None
    size, left = (None if number is None else int(number) * _MIB for number in numbers)
    return Device(name, size, None if _untold(driver) else driver, left, mig == "Enabled")


def _number(text: str) -> str | None:
    """``text`` where it is a number of MiB, ``None`` where nvidia-smi does not tell one, else empty."""
    if _untold(text):
        return None
    return text if re.fullmatch("[0-9]{1,12}", text) else ""


def _untold(text: str) -> bool:
    """Whether nvidia-smi says so that it has no answer, as [N/A] or [Not Supported]."""
    return text == "N/A" or re.fullmatch(r"\[[^][]+\]", text) is not None


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
        return (file.read_text(errors="replace").splitlines() or [""])[0].strip()
    except OSError:
        return ""
