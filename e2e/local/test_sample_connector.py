"""The sample connector of ``examples`` in a real engine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_prompt_that_the_engine_gave_up_is_answered_alike_from_host_memory(engine_python: str, qwen3: Path) -> None:
    run = subprocess.run(
        [engine_python, str(ROOT / "e2e" / "local" / "sample_engine.py"), str(qwen3)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith('{"first"')]
    result = json.loads(line)
    assert result["again"] == result["first"]
    assert (result["before"], result["loaded"]) == (0, 6 * 32)
