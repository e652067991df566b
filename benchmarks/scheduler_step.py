"""What our connectors cost the scheduler's thread, against vLLM's own in the same scheduler."""

from __future__ import annotations

import statistics

from .engine_python import answer
from .table import Table

ROUNDS = 15


def run() -> Table:
    """Serve the same requests with each connector in turns. Raises NotMeasured without the engine's Python."""
    rows = []
    for pair in answer("scheduler_stepper", str(ROUNDS)):
        ours, stock, none = (statistics.median(pair[side]) * 1e6 for side in ("ours", "stock", "none"))
        ratio = statistics.median(a / b for a, b in zip(pair["ours"], pair["stock"], strict=True))
        rows.append((pair["name"], f"{none:.0f}", f"{stock:.0f}", f"{ours:.0f}", f"{ratio:.3f}"))
    note = (
        "CPU time of the scheduler's thread in vLLM's `schedule` and `update_from_output`, a step: 64 prompts of 512"
        " tokens and 32 of them again, 32 tokens generated for each, 8 requests at a time, without a model. The worker"
        f" halves are real and not in the figures. Medians of {ROUNDS} rounds in turns; the ratio is the median of the"
        " rounds' ratios."
    )
    header = ("connector", "without any, us", "vLLM's, us", "ours, us", "ratio")
    return Table("A step of the scheduler", note, header, tuple(rows))
