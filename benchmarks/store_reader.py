"""Reads of the L2 tier for ``store_reads``, in the engine's Python: a round for every line of standard input.

``python -m benchmarks.store_reader URL CHUNK_BYTES OBJECTS THREADS SECONDS`` stores the objects, prints ``0`` and then,
for every line ``tier`` or ``plain``, the bytes a second of one round. ``tier`` loads objects as the tier does: received
in a bounce buffer, verified, copied to a slot. ``plain`` reads objects as large from the same store with as many
threads, into one buffer each, and does nothing else. Files are dropped from the page cache before each pass over them;
only reads are timed. Servers also hold the objects as ``key:000000000000`` and so on, for their own client.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from kvserving_connector.store.address import Credentials
from kvserving_connector.store.framing import HEADER_BYTES
from kvserving_connector.store.open import open_store
from kvserving_connector.store.resp import encode
from kvserving_connector.store.tally import Event, Tally
from kvserving_connector.store.transfers import Item, Transfers

NAMESPACE = bytes(32)
_PATIENCE = 300.0


def main() -> None:
    """Serve rounds until standard input ends."""
    url, chunk, objects, threads, seconds = sys.argv[1:]
    tier = _Tier(url, int(chunk), int(objects), int(threads))
    plain = _plain_server if url.startswith("redis:") else _plain_files
    passes: dict[str, Callable[[], int]] = {
        "tier": tier.read,
        "plain": lambda: plain(url, int(chunk), int(objects), int(threads)),
    }
    print(0, flush=True)
    for line in sys.stdin:
        print(_round(url, passes[line.strip()], float(seconds)), flush=True)
    tier.close()


def _round(url: str, one_pass: Callable[[], int], seconds: float) -> float:
    """Pass over the objects until ``seconds`` are over; return bytes a second."""
    spent, total = 0.0, 0
    while spent < seconds:
        _forget(url)
        began = time.perf_counter()
        total += one_pass()
        spent += time.perf_counter() - began
    return total / spent


class _Tier:
    """The tier's threads, with the objects stored."""

    def __init__(self, url: str, chunk: int, objects: int, threads: int) -> None:
        self._client = open_store([url], 2**40, Credentials.from_environment())
        self._slots = np.frombuffer(np.random.default_rng(0).bytes(chunk * objects), np.uint8).copy()
        self._slots = self._slots.reshape(objects, chunk)
        self._tally = Tally()
        self._transfers = Transfers(self._client, self._slots, self._tally, readers=threads)
        self._items = [Item(hashlib.sha256(b"%d" % index).digest(), index) for index in range(objects)]
        self._run(load=False)
        if url.startswith("redis:"):
            whole = bytes(HEADER_BYTES + chunk)
            for index in range(objects):
                self._client.put(_name(index), [whole], time.monotonic() + _PATIENCE)
        self.read()

    def read(self) -> int:
        self._tally.take()
        self._run(load=True)
        counts = self._tally.take()
        assert counts[Event.READ, ""] == len(self._items), counts
        return int(self._slots.nbytes)

    def _run(self, *, load: bool) -> None:
        self._transfers.submit(0, self._items, NAMESPACE, time.monotonic() + _PATIENCE, load=load)
        self._transfers.drain()
        self._transfers.finished()

    def close(self) -> None:
        self._transfers.close()
        self._client.close()


def _name(index: int) -> str:
    """What redis-benchmark makes of ``key:__rand_int__``."""
    return f"key:{index:012d}"


def _plain_server(url: str, chunk: int, objects: int, threads: int) -> int:
    """GET the objects over one connection per thread, each body with one call where it can be."""
    parts = urlsplit(url)
    line = b"$%d\r\n" % (HEADER_BYTES + chunk)

    def read(first: int) -> int:
        answer = memoryview(bytearray(len(line) + HEADER_BYTES + chunk + 2))
        total = 0
        with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(None)
            for index in range(first, objects, threads):
                connection.sendall(b"".join(encode(b"GET", _name(index).encode())))
                have = 0
                while have < len(answer):
                    number = connection.recv_into(answer[have:], 0, socket.MSG_WAITALL)
                    assert number, "the server closed the connection"
                    have += number
                assert answer[: len(line)] == line
                total += chunk
        return total

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(read, range(threads)))


def _plain_files(url: str, chunk: int, objects: int, threads: int) -> int:
    """Read the files, each thread its share."""
    paths = _files(url)
    assert len(paths) == objects, f"{len(paths)} files"

    def read(first: int) -> int:
        buffer = bytearray(HEADER_BYTES + chunk)
        total = 0
        for path in paths[first::threads]:
            file = os.open(path, os.O_RDONLY)
            total += os.readv(file, [buffer])
            os.close(file)
        return total

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(read, range(threads)))


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
