"""Reads of the L2 tier for ``store_reads``, in the engine's Python: one JSON line per round.

``python -m benchmarks.store_reader {tier|plain} URL CHUNK_BYTES OBJECTS THREADS SECONDS``. ``tier`` loads objects as
the tier does: received in a bounce buffer, verified, copied to a slot. ``plain`` reads the same files and does nothing
else. Files are dropped from the page cache before each pass over them; only reads are timed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from kvserving_connector.store.address import Credentials
from kvserving_connector.store.framing import HEADER_BYTES
from kvserving_connector.store.open import open_store
from kvserving_connector.store.tally import Event, Tally
from kvserving_connector.store.transfers import Item, Transfers

NAMESPACE = bytes(32)


def main() -> None:
    """Print the bytes a second of one round."""
    kind, url, chunk, objects, threads, seconds = sys.argv[1:]
    measure = tier if kind == "tier" else plain
    print(json.dumps(measure(url, int(chunk), int(objects), int(threads), float(seconds))))


def tier(url: str, chunk: int, objects: int, threads: int, seconds: float) -> float:
    """Store the objects where they are missing, then load all of them again and again."""
    client = open_store([url], 2**40, Credentials.from_environment())
    slots = np.frombuffer(np.random.default_rng(0).bytes(chunk * objects), np.uint8).reshape(objects, chunk).copy()
    tally = Tally()
    transfers = Transfers(client, slots, tally, readers=threads)
    items = [Item(hashlib.sha256(b"%d" % index).digest(), index) for index in range(objects)]
    _run(transfers, items, load=False)
    _run(transfers, items, load=True)
    counts = tally.take()
    assert counts[Event.READ, ""] == objects, counts
    spent, rounds = 0.0, 0
    while spent < seconds:
        _forget(url)
        began = time.perf_counter()
        _run(transfers, items, load=True)
        spent += time.perf_counter() - began
        rounds += 1
    assert tally.take()[Event.READ, ""] == objects * rounds
    transfers.close()
    client.close()
    return rounds * objects * chunk / spent


def _run(transfers: Transfers, items: list[Item], *, load: bool) -> None:
    transfers.submit(0, items, NAMESPACE, time.monotonic() + 300, load=load)
    transfers.drain()
    transfers.finished()


def plain(url: str, chunk: int, objects: int, threads: int, seconds: float) -> float:
    """Read the files that ``tier`` wrote, each thread its share, into one buffer per thread."""
    paths = _files(url)
    assert len(paths) == objects, f"{len(paths)} files"
    buffers = [bytearray(HEADER_BYTES + chunk) for _ in range(threads)]

    def read(index: int) -> int:
        total = 0
        for path in paths[index::threads]:
            file = os.open(path, os.O_RDONLY)
            total += os.readv(file, [buffers[index]])
            os.close(file)
        return total

    spent, total = 0.0, 0
    with ThreadPoolExecutor(threads) as pool:
        while spent < seconds:
            _forget(url)
            began = time.perf_counter()
            total += sum(pool.map(read, range(threads)))
            spent += time.perf_counter() - began
    return total / spent


def _files(url: str) -> list[Path]:
    return sorted(path for path in Path(url.removeprefix("file://")).rglob("kv1-*") if path.is_file())


def _forget(url: str) -> None:
    """Write files back and drop them from the page cache."""
    for path in _files(url) if url.startswith("file://") else ():
        file = os.open(path, os.O_RDONLY)
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


if __name__ == "__main__":
    main()
