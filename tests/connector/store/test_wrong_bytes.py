"""10,000 reads of each kind of store among torn, stale, missing and swapped objects: not one wrong byte.

A directory and servers are also changed behind the client's back, in the middle of a read and as a whole.

Bodies are as long as each other, so that only what an object says of itself can tell them apart. The twin test takes
the checks away and must see wrong bytes, or the mix would prove nothing.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.connector.store.servers import NO_CREDENTIALS, Server, address_of, ended, expect, soon

from kvserving_connector.store import transfers as transfers_module
from kvserving_connector.store.client import Reason, StoreClient, StoreFault
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.framing import HEADER_BYTES, header, object_name
from kvserving_connector.store.open import KINDS, Kind, open_store
from kvserving_connector.store.tally import Event, Tally
from kvserving_connector.store.transfers import Finished, Item, Transfers
from kvserving_connector.store.valkey import ValkeyStore

NAMESPACE, OTHER = bytes(32), b"\1" * 32
CHUNK = 3000
READS = 10_000
BATCH = 100
KEYS = [index.to_bytes(4, "big") * 9 for index in range(BATCH)]
BODIES = [os.urandom(CHUNK) for _ in KEYS]
UNTOUCHED = 0xAA

Start = Callable[..., Server]


class Vandal:
    """Changes objects. ``read``, ``write`` and ``remove`` are the store's own, unframed."""

    def __init__(self, read: Callable[[str], bytes | None], write: Callable[[str, bytes], None], remove: Any) -> None:
        self._read, self._write, self._remove = read, write, remove
        self._random = random.Random(7)

    def spoil(self, index: int) -> str:
        """Spoil the object of a key in one of ten ways and return which."""
        kind = self._random.choice(
            ["truncated", "emptied", "flipped", "header", "swapped", "missing", "stale", "tenant", "longer", "torn"]
        )
        name, other = (object_name(NAMESPACE, KEYS[at]) for at in (index, (index + 1) % BATCH))
        data = self._read(name) or framed(index)
        whole = {
            "truncated": data[: self._random.randrange(len(data))],
            "emptied": b"",
            "flipped": self._flip(data, HEADER_BYTES, len(data)),
            "header": self._flip(data, 0, 112),
            "swapped": self._read(other) or framed((index + 1) % BATCH),
            "stale": framed(index, body=BODIES[(index + 3) % BATCH], checksum_of=BODIES[index]),
            "tenant": framed((index + 1) % BATCH, key=KEYS[index], namespace=OTHER),
            "longer": data + b"x",
            "torn": data[: len(data) // 2] + os.urandom(len(data) - len(data) // 2),
        }.get(kind)
        if whole is None:
            self._remove(name)
        else:
            self._write(name, whole)
        return kind

    def _flip(self, data: bytes, first: int, last: int) -> bytes:
        if last <= first:
            return b""
        changed = bytearray(data)
        changed[self._random.randrange(first, min(last, len(data))) if len(data) > first else -1] ^= 1 << 3
        return bytes(changed)


Vandalised = tuple[StoreClient, Vandal, Callable[[], None]]
"""A store, who spoils its objects, and what turns all of it upside down."""


def framed(
    index: int,
    *,
    body: bytes | None = None,
    checksum_of: bytes | None = None,
    key: bytes | None = None,
    namespace: bytes = NAMESPACE,
) -> bytes:
    body = BODIES[index] if body is None else body
    of = body if checksum_of is None else checksum_of
    return header(namespace, KEYS[index] if key is None else key, memoryview(of)) + body


@contextmanager
def files(tmp_path: Path, _start: Start) -> Iterator[Vandalised]:
    store = FileStore(tmp_path / "l2", 2**30)

    def write(name: str, data: bytes) -> None:
        # In place, as a broken disk or a foreign program would: readers see every state of it.
        try:
            store._path(name).write_bytes(data)
        except FileNotFoundError:
            store._path(name).parent.mkdir(parents=True, exist_ok=True)
            store._path(name).write_bytes(data)

    def read(name: str) -> bytes | None:
        try:
            return store._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def remove(name: str) -> None:
        store._path(name).unlink(missing_ok=True)

    def upheaval() -> None:
        os.rename(tmp_path / "l2", tmp_path / f"l2-{time.monotonic_ns()}")

    yield store, Vandal(read, write, remove), upheaval
    store.close()


@contextmanager
def servers(tmp_path: Path, _start: Start) -> Iterator[Vandalised]:
    running = [Server(tmp_path) for _ in range(2)]
    store = ValkeyStore([server.address for server in running], NO_CREDENTIALS)

    def server_of(name: str) -> Server:
        return running[store._shards.owner(name)]

    def read(name: str) -> bytes | None:
        answer = server_of(name).command(b"GETRANGE", name.encode(), b"0", b"-1")
        return answer if isinstance(answer, bytes) and answer else None

    def write(name: str, data: bytes) -> None:
        server_of(name).command(b"SET", name.encode(), data)

    def remove(name: str) -> None:
        server_of(name).command(b"DEL", name.encode())

    def upheaval() -> None:
        # One hangs for a moment; one comes back empty, with connections of the client open to the old process.
        running[1].hang()
        running[0].kill()
        running[0].start()
        running[1].resume()

    try:
        yield store, Vandal(read, write, remove), upheaval
    finally:
        store.close()
        for server in running:
            server.close()


@contextmanager
def any_kind(tmp_path: Path, _start: Start, *, kind: Kind) -> Iterator[Vandalised]:
    """Objects are changed by the client itself: how they lie in a store is its own affair."""
    stack = ExitStack()
    store = open_store([address_of(kind, stack, tmp_path)], 2**30, NO_CREDENTIALS)

    def read(name: str) -> bytes | None:
        buffer = memoryview(bytearray(2 * (HEADER_BYTES + CHUNK)))
        try:
            return bytes(buffer[: store.get(name, buffer, soon())])
        except StoreFault as fault:
            expect(fault, Reason.ABSENT)
            return None

    def write(name: str, data: bytes) -> None:
        store.delete(name, soon())
        store.put(name, [data], soon())

    with stack:
        yield store, Vandal(read, write, lambda name: store.delete(name, soon())), lambda: None
        store.close()


MIXES = [files, servers, *(partial(any_kind, kind=kind) for kind in KINDS)]
IDS = ["files", "servers", *(kind.example for kind in KINDS)]


class Reader:
    """Loads all keys in one job, compares every slot, and counts."""

    def __init__(self, store: StoreClient) -> None:
        self.slots = np.zeros((2 * BATCH, CHUNK), np.uint8)
        self.slots[BATCH:] = np.frombuffer(b"".join(BODIES), np.uint8).reshape(BATCH, CHUNK)
        self.tally = Tally()
        self.transfers = Transfers(store, self.slots, self.tally)
        self.right = self.wrong = self.missed = self._number = 0

    def round(self, seconds: float = 5.0) -> None:
        self.slots[:BATCH] = UNTOUCHED
        done = set(self._run([Item(key, index) for index, key in enumerate(KEYS)], seconds, load=True).done)
        for index, key in enumerate(KEYS):
            expected = BODIES[index] if key in done else bytes([UNTOUCHED]) * CHUNK
            self.wrong += self.slots[index].tobytes() != expected
            self.right += key in done
            self.missed += key not in done

    def store(self) -> None:
        self._run([Item(key, BATCH + index) for index, key in enumerate(KEYS)], 5.0, load=False)

    def _run(self, items: list[Item], seconds: float, *, load: bool) -> Finished:
        self._number += 1
        self.transfers.submit(self._number, items, NAMESPACE, time.monotonic() + seconds, load=load)
        return ended(self.transfers, 1)[0]


@pytest.mark.parametrize("mix", MIXES, ids=IDS)
def test_ten_thousand_reads_in_the_mix_hold_no_wrong_byte(tmp_path: Path, start_server: Start, mix: Any) -> None:
    with mix(tmp_path, start_server) as (store, vandal, upheaval):
        reader = Reader(store)
        ruined: Counter[str] = Counter()
        choice = random.Random(3)
        for number in range(READS // BATCH):
            reader.store()
            ruined.update(vandal.spoil(index) for index in range(BATCH) if choice.random() < 0.3)
            stop = threading.Event()
            # While the job runs, further objects change under it.
            meanwhile = threading.Thread(target=_keep_spoiling, args=(vandal, stop))
            if number % 2:
                meanwhile.start()
            if number % 20 == 10:
                upheaval()
            # Every tenth job is given up in the middle, of a fast store as of a slow one.
            reader.round({5: 0.004, 15: 0.001}.get(number % 20, 5.0))
            stop.set()
            if number % 2:
                meanwhile.join()
        counts = reader.tally.take()
        reader.transfers.close()
    assert reader.right + reader.missed == READS
    assert reader.wrong == 0
    assert reader.right > READS // 4
    assert len(ruined) == 10
    missed = {label for event, label in counts if event is Event.MISS}
    expected = {Reason.TRUNCATED, Reason.CHECKSUM, Reason.KEY, Reason.NAMESPACE, Reason.ABSENT, Reason.FORMAT}
    assert missed >= {*expected, Reason.LENGTH, Reason.TIMEOUT}
    assert reader.missed <= sum(number for (event, _), number in counts.items() if event is Event.MISS)


def _keep_spoiling(vandal: Vandal, stop: threading.Event) -> None:
    index = 0
    while not stop.is_set() and index < BATCH:
        # The upheaval takes the store away from the vandal as well.
        with suppress(StoreFault, FileNotFoundError):
            vandal.spoil(index)
        index += 5


@pytest.mark.parametrize("mix", MIXES, ids=IDS)
def test_without_the_checks_the_same_mix_gives_wrong_bytes(
    tmp_path: Path, start_server: Start, mix: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers_module, "check", lambda *_: None)
    with mix(tmp_path, start_server) as (store, vandal, _):
        reader = Reader(store)
        for _ in range(3):
            reader.store()
            for index in range(0, BATCH, 3):
                vandal.spoil(index)
            reader.round()
        reader.transfers.close()
    assert reader.wrong > 10
