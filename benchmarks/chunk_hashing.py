"""What the keys of a long prompt cost the scheduler at every step, against hashing its chunks each time."""

from __future__ import annotations

import statistics

from .engine_python import answer
from .table import Table

ROUNDS = 15
STEPS = 45
HASH_BLOCK = 16


def run() -> Table:
    """Ask for the keys of each prompt at every step. Raises NotMeasured without the engine's Python."""
    rows = []
    for pair in answer("chunk_hasher", str(ROUNDS)):
        ours, each_time = pair["ours"], pair["each_time"]
        calls = (ours["first"], ours["later"], each_time["later"])
        microseconds = (statistics.median(side["seconds"]) * 1e6 for side in (ours, each_time))
        figures = (f"{pair['tokens']:,}", f"{pair['span']:,}", *(f"{count:,}" for count in calls))
        rows.append((*figures, *(f"{time:,.1f}" for time in microseconds)))
    note = (
        f"The keys of one prompt at {STEPS} scheduler steps: two cache groups, block hashes of {HASH_BLOCK} tokens."
        " Each time: a key for each chunk and group is made from its block hashes at every step. Hash calls are counted"
        f" over all steps after the first; a step is one of these, the median of {ROUNDS} rounds in turns."
    )
    header = (
        "prompt, tokens",
        "span, tokens",
        "calls in the first step, ours",
        "after it, ours",
        "after it, each time",
        "a step, ours, us",
        "each time, us",
    )
    return Table("Hashing of chunks", note, header, tuple(rows))
