"""What a staged read takes beside an engine's thread that waits for it, against one that looks again and again."""

from __future__ import annotations

import statistics

from .engine_python import answer
from .table import Table

ROUNDS, READS = 6, 25


def run() -> Table:
    """Read the same slots both ways in turns. Raises NotMeasured without the engine's Python."""
    rows = []
    for found in answer("staged_reader", str(ROUNDS), str(READS)):
        spins, waits = (found[side] for side in ("spins", "waits"))
        ratio = statistics.median(waits) / statistics.median(spins)
        rows.append(
            (str(found["chunks"]), *(f"{1e3 * statistics.median(x):.1f}" for x in (spins, waits)), f"{ratio:.2f}")
        )
    note = (
        "From the look at the header to the last copy, between two NIXL agents of one process in host memory, chunks of"
        " 576 KiB, eight at a time. The thread of the engine takes steps that compute nothing: without a pause, or as"
        " the connector's, each until the read has ended and 1 ms at most. Both want Python's lock, as on a GPU host."
        f" Medians of {ROUNDS * READS} reads."
    )
    header = ("chunks", "steps without a pause, ms", "steps that wait, ms", "ratio")
    return Table("Staged reads beside the engine's steps", note, header, tuple(rows))
