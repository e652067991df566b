"""Soak of WorkerCacheConnector with real engines: ``python -m e2e.soak``, by the engine's interpreter.

``KVSERVING_SOAK_MINUTES`` (30) is the time under load, shared by the trials: one rank and two, saving at once and late,
without L2 and with one of files. Under 10 minutes there are two of the four. Engines' starts come on top.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from e2e.local.real_model import tiny_model

MINUTES = 30.0
FEW_MINUTES = 10.0
# Memory that is freed goes back at once, and oneDNN does not keep code for each number of tokens that it has met: what
# grows is in use.
_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1",
}


class Run(NamedTuple):
    """One trial: ranks, when blocks are saved, and whether there is an L2."""

    ranks: int
    offload: str
    l2: bool = False

    @property
    def name(self) -> str:
        """The trial in words."""
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{ranks}, {self.offload}{', L2' if self.l2 else ''}"


LONG = (Run(1, "eager"), Run(1, "lazy"), Run(2, "eager"), Run(2, "lazy", l2=True))
SHORT = (Run(1, "lazy"), Run(2, "eager"))


def main() -> int:
    """Run the trials one after the other; return 1 if one failed."""
    minutes = float(os.environ.get("KVSERVING_SOAK_MINUTES") or MINUTES)
    runs = LONG if minutes >= FEW_MINUTES else SHORT
    model = tiny_model(sys.executable)
    failed = []
    table: list[tuple[str, dict[str, int]]] = []
    with tempfile.TemporaryDirectory() as folder:
        questions = Path(folder) / "questions.json"
        subprocess.run([sys.executable, "-m", "e2e.soak.prompts", str(model), str(questions)], check=True)
        for run in runs:
            print(f"\n{run.name}: {60 * minutes / len(runs):.0f} s", flush=True)
            counted = _trial(model, questions, run, 60 * minutes / len(runs))
            if counted is None:
                failed.append(run.name)
            else:
                table.append((run.name, counted))
    _print(table)
    for name in failed:
        print(f"FAILED: {name}")
    return 1 if failed else 0


def _trial(model: Path, questions: Path, run: Run, seconds: float) -> dict[str, int] | None:
    """Return what a trial in a process of its own counted, None when it failed."""
    seed = os.environ.get("KVSERVING_SOAK_SEED") or str(time.time_ns())
    print(f"seed {seed}", flush=True)
    words = [str(model), str(questions), str(run.ranks), run.offload, str(seconds), seed]
    if run.l2:
        words.append(f"file://{questions.parent / 'store'}")
    counts = ""
    with subprocess.Popen(
        [sys.executable, "-m", "e2e.soak.trial", *words],
        env={**os.environ, **_MEMORY},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                counts = line
            else:
                print(line, end="", flush=True)
    if process.returncode != 0:
        return None
    counted: dict[str, int] = json.loads(counts)
    return counted


def _print(table: list[tuple[str, dict[str, int]]]) -> None:
    names = list(dict.fromkeys(name for _, counted in table for name in counted))
    width = max((len(name) for name in names), default=0)
    print("\n" + " " * width + "".join(f"{title:>18}" for title, _ in table))
    for name in names:
        print(f"{name:<{width}}" + "".join(f"{counted.get(name, 0):>18,}" for _, counted in table))


if __name__ == "__main__":
    raise SystemExit(main())
