"""Copies between a cache's blocks and a slot's rows: all layers by one kernel, against a kernel for each layer.

    python -m e2e.gpu.copies

Run by an interpreter with torch, on a GPU, with ``connector/src`` on PYTHONPATH. Each layer is an allocation of its
own, as vLLM makes them. Prints rows of a Markdown table: milliseconds of a copy and of the call that begins it, and
the rate.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time

import e2e.gpu.needed  # noqa: F401
import torch

from kvserving_connector.vllm.staging.rows import Rows

LAYERS, BLOCK_BYTES, BLOCKS = 36, 65536, 6000
COPIED = 56
"""Blocks of a copy: 128 MiB of rows, as a decode's chunk has."""
TIMES = 12


def main() -> int:
    """Compare and time both; return the exit status: 1 when they differ."""
    parser = argparse.ArgumentParser(prog="python -m e2e.gpu.copies", description="Copies of staged transfers, alone.")
    parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here: what is timed are copies on one")
    layers, between = [], []
    for number in range(LAYERS):
        layers.append(torch.randint(0, 255, (BLOCKS, BLOCK_BYTES), dtype=torch.uint8, device="cuda"))
        between.append(torch.empty((3 << 20) + 3584 * number, dtype=torch.uint8, device="cuda"))
    names = [str(number) for number in range(LAYERS)]
    together, apart = Rows(layers, names), Rows(layers, names)
    apart._all = None
    chosen = random.Random(0).sample(range(BLOCKS), 2 * COPIED)
    sources, targets = chosen[:COPIED], chosen[COPIED:]
    first, second = (torch.zeros(COPIED * together.row_bytes, dtype=torch.uint8, device="cuda") for _ in range(2))
    together.gather(together.indices(sources), first)
    apart.gather(apart.indices(sources), second)
    together.scatter(together.indices(targets), first)
    same = torch.equal(first, second) and all(
        torch.equal(layer[target], layer[source])
        for layer in layers
        for target, source in zip(targets, sources, strict=True)
    )
    print("| copy | layers | ms | ms of the call | GB/s |")
    print("|---|---|---|---|---|")
    numbers = together.indices(sources)
    for what in ("gather", "scatter"):
        for how, rows in (("together", together), ("one by one", apart)):
            calls, walls = [], []
            for _ in range(TIMES):
                torch.cuda.synchronize()
                started = time.perf_counter()
                getattr(rows, what)(numbers, first)
                calls.append(time.perf_counter() - started)
                torch.cuda.synchronize()
                walls.append(time.perf_counter() - started)
            call, wall = statistics.median(calls), statistics.median(walls)
            print(f"| {what} | {how} | {1e3 * wall:.3f} | {1e3 * call:.3f} | {len(first) / wall / 1e9:,.0f} |")
    if together._all is None:
        print("the layers were not taken together", file=sys.stderr)
    return int(not same or together._all is None)


if __name__ == "__main__":
    sys.exit(main())
