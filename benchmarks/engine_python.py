"""Programs of the benchmarks in the engine's Python, which has vLLM and the connector."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from .table import NotMeasured

ROOT = Path(__file__).parents[1]
PYTHON = os.environ.get("KVSERVING_ENGINE_PYTHON") or str(ROOT / ".venv-engine" / "bin" / "python")


def command(module: str, *words: str) -> list[str]:
    """Return the command that runs ``benchmarks.<module>``. Raises NotMeasured without the environment."""
    if not Path(PYTHON).exists():
        raise NotMeasured(f"there is no {PYTHON}: run `make install-engine`")
    return [PYTHON, "-m", f"benchmarks.{module}", *words]


def environment() -> dict[str, str]:
    """Return the environment for it: this checkout's connector, and no downloads."""
    sources = os.pathsep.join((str(ROOT / "connector" / "src"), str(ROOT)))
    return {**os.environ, "PYTHONPATH": sources, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def answer(module: str, *words: str) -> Any:
    """Run ``benchmarks.<module>`` and return the JSON in its last line of output.

    Raises NotMeasured without the environment, RuntimeError with the end of what it wrote when it fails.
    """
    # Without a fixed seed two engines give equal blocks unequal hashes.
    fixed = {**environment(), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command(module, *words), env=fixed, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"benchmarks.{module} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])
