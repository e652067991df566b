"""How long the command line takes to start, against the interpreter alone."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from .table import Table

ROUNDS = 21


def run() -> Table:
    """Time ``kvserving --help`` and an empty program in turns."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "kvserving --help": [sys.executable, "-m", "kvserving_operator", "--help"],
        "kvserving validate examples/laptop.yaml": [
            sys.executable, "-m", "kvserving_operator", "validate", "examples/laptop.yaml",
        ],
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - start)
    base = statistics.median(seconds["python -c pass"])
    rows = tuple(
        (
            f"`{name}`",
            f"{min(s) * 1e3:.0f}",
            f"{(m := statistics.median(s)) * 1e3:.0f}",
            f"{max(s) * 1e3:.0f}",
            f"{m / base:.1f}",
        )
        for name, s in seconds.items()
    )
    note = f"Whole processes, {ROUNDS} rounds in turns; the ratio is to the interpreter that does nothing."
    return Table("Start of the command line", note, ("command", "min ms", "median ms", "max ms", "ratio"), rows)
