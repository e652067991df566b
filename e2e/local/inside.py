"""Runs a program of ``e2e.inside`` by the engine's interpreter and returns what it printed."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from e2e.local.stage import REPOSITORY

_SECONDS = 600


def seen(engine_python: str, module: str, *arguments: str) -> dict[str, Any]:
    """Return the line of JSON that ``python -m e2e.inside.MODULE`` printed; vLLM writes its log there too."""
    run = subprocess.run(
        [engine_python, "-m", f"e2e.inside.{module}", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found
