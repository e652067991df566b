"""How many pages a transfer between host memory and a device hands to the driver at a time."""

from __future__ import annotations

from collections.abc import Iterator

FIRST_BATCH = 128
"""Pages of the first batch; each later one has twice as many, up to ``LARGEST_BATCH``."""
LARGEST_BATCH = 1024


def batches(pages: int) -> Iterator[slice]:
    """Yield the batches of a transfer of ``pages`` pages, in order.

    The driver copies nothing of a batch before it has read most of its addresses, so the first is small; a batch costs
    the calling thread some microseconds, so later ones are not (benchmarks/results/host-copies-h200.md).
    """
    begin, size = 0, FIRST_BATCH
    while begin < pages:
        yield slice(begin, begin + size)
        begin, size = begin + size, min(2 * size, LARGEST_BATCH)
