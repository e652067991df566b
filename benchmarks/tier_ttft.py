"""Time to the first token when the prompt is computed, and when it comes from each of the tiers."""

from __future__ import annotations

import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from e2e.local.real_model import tiny_model

from .engine_python import PYTHON, answer, command
from .store_server import store_server
from .table import Table

ROUNDS = 7
LENGTHS = (512, 1024, 2048, 4096)
STATES = {"cold": "computed", "own": "engine's own cache", "l1": "L1", "l2": "L2 (Valkey)"}


def run() -> Table:
    """Two engines one after the other, the second with nothing but what the first has stored in Valkey.

    Raises NotMeasured without a server or the engine's Python, AssertionError when an answer differs from the computed
    one.
    """
    command("tier_reader")
    model = tiny_model(PYTHON)
    with tempfile.TemporaryDirectory() as folder, store_server(Path(folder)) as port:
        url = f"redis://127.0.0.1:{port}"
        found = [*_engine("first", model, url), *_engine("second", model, url)]
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    answers: dict[tuple[int, int], list[int]] = {}
    for one in found:
        seconds[one["state"], one["length"]].append(one["seconds"])
        computed = answers.setdefault((one["length"], one["round"]), one["tokens"])
        assert one["tokens"] == computed, f"the answer from {one['state']} differs from the computed one"
    rows = []
    for length in LENGTHS:
        medians = {state: statistics.median(seconds[state, length]) for state in STATES}
        rows.append(
            (
                f"{length:,}",
                *(f"{medians[state] * 1e3:.0f} ms" for state in STATES),
                *(f"{medians[state] / medians['cold']:.2f}" for state in ("l1", "l2")),
            )
        )
    note = (
        f"A model of 4 layers with random weights in float32 on the CPU; medians of {ROUNDS} prompts of each length,"
        " which share nothing. The engine's cache is emptied before a prompt is read from L1; a second engine, whose"
        " L1 is empty, reads it from a Valkey server on the same machine. Loads are always taken (`loads: always`),"
        " also where computing is faster. Every answer has the same token ids as the computed one."
    )
    header = ("tokens", *STATES.values(), "L1 to computed", "L2 to computed")
    return Table("Time to the first token from the tiers", note, header, tuple(rows))


def _engine(kind: str, model: Path, url: str) -> list[dict[str, Any]]:
    words = (kind, str(model), url, str(ROUNDS), ",".join(map(str, LENGTHS)))
    found: list[dict[str, Any]] = answer("tier_reader", *words)
    return found
