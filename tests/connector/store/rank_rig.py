"""One rank's side of L2, with slots of its own and steps of a worker."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.connector.store.servers import wait_for
from tests.connector.store.test_namespace import BASE

from kvserving_connector.store.client import Reason, StoreClient
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.namespace import Namespace
from kvserving_connector.store.rank_store import RankStore
from kvserving_connector.store.tally import Event, Tally
from kvserving_connector.store.transfers import Finished, Item

KEYS = [bytes([index]) * 36 for index in range(8)]
NAMESPACE = dataclasses.replace(BASE, identity={"rank": "0"})


class Held(FileStore):
    """A directory whose calls named in ``held`` wait until ``release`` is set."""

    def __init__(self, root: Path, *held: str) -> None:
        super().__init__(root)
        self.held = set(held)
        self.release = threading.Event()
        self.entered = threading.Semaphore(0)

    def _hang(self, call: str) -> None:
        if call in self.held:
            self.entered.release()
            self.release.wait(30)

    def exists(self, keys: Sequence[str], deadline: float) -> list[bool | Reason]:
        self._hang("exists")
        return super().exists(keys, deadline)

    def get(self, key: str, into: memoryview, deadline: float) -> int:
        held = "get" in self.held
        self._hang("get")
        # As a read that hangs in the system: it ends well, however late.
        return super().get(key, into, time.monotonic() + 10 if held else deadline)

    def put(self, key: str, parts: Any, deadline: float) -> bool:
        self._hang("put")
        return super().put(key, parts, deadline)


class Rank:
    def __init__(
        self,
        client: StoreClient,
        *,
        namespace: Namespace = NAMESPACE,
        slots: int = 32,
        slot_bytes: int = 4096,
        **options: Any,
    ) -> None:
        self.client = client
        self.slots: npt.NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (slots, slot_bytes), np.uint8)
        self.tally = Tally()
        self.counted: dict[tuple[Event, str], int] = {}
        options = {"load_timeout_s": 5.0, "max_inflight": 64, **options}
        self.store = RankStore(client, self.slots, self.tally, namespace=lambda: namespace, **options)
        self._job = 0

    def put(self, keys: Sequence[bytes] = KEYS, first: int = 0) -> bool:
        self._job += 1
        return self.store.store(self._job, [Item(key, first + index) for index, key in enumerate(keys)])

    def get(self, keys: Sequence[bytes] = KEYS, first: int = 16) -> None:
        self._job += 1
        self.store.load(self._job, [Item(key, first + index) for index, key in enumerate(keys)])

    def end(self, seconds: float = 20.0) -> Finished:
        found: list[Finished] = []

        def one() -> bool:
            found.extend(self.store.finished())
            return bool(found)

        wait_for(one, seconds)
        (finished,) = found
        return finished

    def found(self, keys: Sequence[bytes] = KEYS, ticket: Hashable = "request") -> list[bytes]:
        """Look keys up and return those that the store has."""
        self.store.look_up(ticket, keys)
        return [key for key, there in zip(keys, self.answer(ticket), strict=True) if there]

    def answer(self, ticket: Hashable = "request") -> tuple[bool, ...]:
        answers: list[tuple[Hashable, tuple[bool, ...]]] = []

        def one() -> bool:
            answers.extend(self.store.found())
            return bool(answers)

        wait_for(one)
        ((answered, there),) = answers
        assert answered == ticket
        return there

    def count(self, event: Event, label: str = "") -> int:
        for each, number in self.tally.take().items():
            self.counted[each] = self.counted.get(each, 0) + number
        return self.counted.get((event, label), 0)


@contextmanager
def rank(client: StoreClient, **options: Any) -> Iterator[Rank]:
    made = Rank(client, **options)
    try:
        yield made
    finally:
        if isinstance(client, Held):
            client.release.set()
        made.store.close()


def name(key: bytes) -> str:
    return object_name(NAMESPACE.digest(), key)
