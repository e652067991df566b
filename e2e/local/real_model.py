"""What real engines need of this machine: an interpreter with vLLM, and a tiny model."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.kept import kept

MAKER = Path(__file__).parents[2] / "examples" / "tiny_model.py"
_MODEL_SECONDS = 120


class NoEngine(Exception):
    """There is no interpreter with vLLM; the message says how to get one."""


def engine_python(environ: Mapping[str, str] = os.environ) -> str:
    """Return the interpreter that KVSERVING_ENGINE_PYTHON names; raise ``NoEngine`` where there is none."""
    found = environ.get("KVSERVING_ENGINE_PYTHON")
    if not found:
        raise NoEngine(
            "real engines need KVSERVING_ENGINE_PYTHON, the interpreter that has vLLM: `make install-engine`"
        )
    if shutil.which(found) is None:
        raise NoEngine(f"KVSERVING_ENGINE_PYTHON={found} is not a program: `make install-engine` makes one with vLLM")
    return found


def tiny_model(python: str, kind: str = "qwen3") -> Path:
    """Return the folder of a tiny model (a kind of ``examples/tiny_model.py``), made once per machine."""
    folder = kept() / "models" / f"tiny-{kind}"
    subprocess.run([python, str(MAKER), kind, str(folder)], check=True, timeout=_MODEL_SECONDS)
    return folder
