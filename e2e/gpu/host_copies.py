"""Copies from host memory into a cache's blocks: all pages in one batch, in several, or by whole rows and a kernel.

    python -m e2e.gpu.host_copies

Run by an interpreter with torch, on a GPU, with ``connector/src`` on PYTHONPATH. Host memory lies as L1's does: a row
of all layers for each block. Prints rows of a Markdown table: milliseconds to the last byte, GB/s, and milliseconds of
the calling thread. The exit status is 1 when a byte is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import e2e.gpu.needed  # noqa: F401
import torch

from kvserving_connector.core.batches import batches

LAYERS, PAGE_BYTES, BLOCKS, BLOCK_TOKENS = 36, 65536, 2200, 16
TOKENS = (512, 2000, 8000, 32000)
TIMES = 7
ROWS = 16
"""Blocks that are copied as whole rows before they are scattered."""
ANY_ORDER = 3
"""CU_MEMCPY_SRC_ACCESS_ORDER_ANY: nobody writes the source meanwhile."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = (("order", ctypes.c_int), ("source", _Location), ("target", _Location), ("flags", ctypes.c_uint))


class Driver:
    """``cuMemcpyBatchAsync`` of the driver, in the form of CUDA 13 where it has that."""

    def __init__(self) -> None:
        library = ctypes.CDLL("libcuda.so.1")
        self._new = hasattr(library, "cuMemcpyBatchAsync_v2")
        self._copy = library.cuMemcpyBatchAsync_v2 if self._new else library.cuMemcpyBatchAsync

    def copy(self, targets: torch.Tensor, sources: torch.Tensor, size: int, stream: torch.cuda.Stream) -> None:
        """Begin to copy ``size`` bytes from each address to each. Raises RuntimeError with the driver's number."""
        count = len(targets)
        sizes = torch.full((count,), size, dtype=torch.int64)
        addresses = [ctypes.c_void_p(one.data_ptr()) for one in (targets, sources, sizes)]
        attributes, first = _Attributes(order=ANY_ORDER), (ctypes.c_size_t * 1)(0)
        words: list[Any] = [*addresses, ctypes.c_size_t(count), ctypes.byref(attributes), first, ctypes.c_size_t(1)]
        if not self._new:
            words.append(ctypes.byref(ctypes.c_size_t(0)))
        if status := self._copy(*words, ctypes.c_void_p(stream.cuda_stream)):
            raise RuntimeError(f"cuMemcpyBatchAsync: {status}")


class Copies:
    """Host memory, a cache of blocks, and the ways from one to the other."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._cache = torch.zeros((LAYERS, BLOCKS, PAGE_BYTES), dtype=torch.int8, device="cuda")
        self._host = torch.zeros((BLOCKS, LAYERS, PAGE_BYTES), dtype=torch.int8, pin_memory=True)
        self._host.view(torch.int64)[:, :, 0] = torch.arange(BLOCKS * LAYERS).view(BLOCKS, LAYERS)
        self._rows = torch.empty((8, ROWS, LAYERS, PAGE_BYTES), dtype=torch.int8, device="cuda")
        self._stream, self._behind = torch.cuda.Stream(), torch.cuda.Stream()

    def by_pages(self, blocks: torch.Tensor, rows: torch.Tensor, sizes: Callable[[int], Iterable[slice]]) -> None:
        """Copy page by page, as many at a time as ``sizes`` says."""
        layers = torch.arange(LAYERS)[:, None]
        targets = (self._cache.data_ptr() + (layers * BLOCKS + blocks) * PAGE_BYTES).ravel()
        sources = (self._host.data_ptr() + (rows * LAYERS + layers) * PAGE_BYTES).ravel()
        for part in sizes(len(targets)):
            self._driver.copy(targets[part], sources[part], PAGE_BYTES, self._stream)

    def by_rows(self, blocks: torch.Tensor, rows: torch.Tensor) -> None:
        """Copy whole rows into memory of the device, and scatter them from there."""
        numbers = blocks.pin_memory().to("cuda", non_blocking=True)
        self._behind.wait_stream(torch.cuda.current_stream())
        free: list[torch.cuda.Event | None] = [None] * len(self._rows)
        for at in range(0, len(blocks), ROWS):
            slot = at // ROWS % len(self._rows)
            part, place = rows[at : at + ROWS], self._rows[slot]
            if (event := free[slot]) is not None:
                self._stream.wait_event(event)
            targets = place.data_ptr() + torch.arange(len(part)) * place[0].nbytes
            self._driver.copy(targets, self._host.data_ptr() + part * place[0].nbytes, place[0].nbytes, self._stream)
            self._behind.wait_event(self._stream.record_event())
            with torch.cuda.stream(self._behind):
                found = place[: len(part)].view(torch.int64).transpose(0, 1)
                self._cache.view(torch.int64)[:, numbers[at : at + ROWS]] = found
            free[slot] = self._behind.record_event()

    def wait(self) -> None:
        """Return when everything is copied."""
        self._stream.synchronize()
        self._behind.synchronize()

    def right(self, blocks: torch.Tensor, rows: torch.Tensor) -> bool:
        """Return whether each page has the first word of its own."""
        found = self._cache.view(torch.int64)[:, blocks.cuda(), 0].cpu()
        return bool(torch.equal(found, self._host.view(torch.int64)[rows, :, 0].T))


def every(size: int) -> Callable[[int], Iterable[slice]]:
    """Return batches of one size."""
    return lambda pages: (slice(at, at + size) for at in range(0, pages, size))


def main() -> int:
    """Time every way; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.gpu.host_copies", description="Copies from host memory into a cache's blocks."
    )
    parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here: what is timed are copies to one")
    copies, chance = Copies(), random.Random(0)
    sizes = {"one batch, as vLLM": every(BLOCKS * LAYERS)}
    sizes |= {f"batches of {size}": every(size) for size in (256, 1024, 4096)} | {"growing batches, as ours": batches}
    ways: dict[str, Callable[..., None]] = {name: partial(copies.by_pages, sizes=of) for name, of in sizes.items()}
    ways[f"rows of {ROWS} blocks, scattered"] = copies.by_rows
    print("| way |" + "".join(f" {tokens:,} tokens, ms | GB/s | ms of the call |" for tokens in TOKENS))
    print("|---|" + "---|---|---|" * len(TOKENS))
    wrong = False
    for name, way in ways.items():
        cells = []
        for tokens in TOKENS:
            number, walls, calls = tokens // BLOCK_TOKENS, [], []
            for _ in range(TIMES):
                blocks, rows = (torch.tensor(chance.sample(range(BLOCKS), number)) for _ in range(2))
                torch.cuda.synchronize()
                started = time.perf_counter()
                way(blocks, rows)
                calls.append(time.perf_counter() - started)
                copies.wait()
                walls.append(time.perf_counter() - started)
                wrong |= not copies.right(blocks, rows)
            wall, call = statistics.median(walls[1:]), statistics.median(calls[1:])
            rate = number * LAYERS * PAGE_BYTES / wall / 1e9
            cells.append(f" {1e3 * wall:.2f} | {rate:.1f} | {1e3 * call:.2f} |")
        print(f"| {name} |{''.join(cells)}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
