"""A load that is given up as soon as it can be: what is not told as loaded was not touched."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.connector.store.servers import wait_for

from kvserving_connector.store import transfers as module
from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.framing import header, object_name
from kvserving_connector.store.tally import Tally
from kvserving_connector.store.transfers import Finished, Item, Transfers

NAMESPACE = bytes(32)
CHUNK = 500
KEYS = [bytes([index]) * 36 for index in range(3)]
BODY = b"\x07" * CHUNK
UNTOUCHED = 0xAA


class Watched:
    """A lock; who gives it back gives the job up the ``times``-th time."""

    def __init__(self, times: int, give_up: Any) -> None:
        self._lock = threading.Lock()
        self._left = times
        self._give_up = give_up

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking=blocking)

    def release(self) -> None:
        self._lock.release()
        self._left -= 1
        if self._left == 0:
            self._give_up()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.parametrize("times", range(1, 2 * len(KEYS)))
def test_a_slot_that_is_not_told_as_loaded_was_not_touched(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    now = time.monotonic()
    told: list[Finished] = []

    def give_up() -> None:
        nonlocal now
        now += 100.0
        told.extend(transfers.finished())

    def ended() -> bool:
        told.extend(transfers.finished())
        return bool(told)

    lock: Any = Watched(times, give_up)
    monkeypatch.setattr(module, "_Job", partial(module._Job, lock=lock))
    store = FileStore(tmp_path, 2**30)
    for key in KEYS:
        store.put(object_name(NAMESPACE, key), [header(NAMESPACE, key, memoryview(BODY)) + BODY], float("inf"))
    slots = np.full((len(KEYS), CHUNK), UNTOUCHED, np.uint8)
    transfers = Transfers(store, slots, Tally(), readers=1, clock=lambda: now)
    try:
        transfers.submit(1, [Item(key, index) for index, key in enumerate(KEYS)], NAMESPACE, now + 60.0, load=True)
        wait_for(ended)
        (found,) = told
        assert [slots[index].tobytes() == BODY for index in range(len(KEYS))] == [key in found.done for key in KEYS]
        assert len(found.done) == min(times, len(KEYS))
        assert found.timed_out == bool(found.failed), "what has all arrived is in time, whoever says so first"
    finally:
        transfers.close()
        store.close()


def test_a_number_may_be_used_again_as_soon_as_its_job_is_told(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    told: list[Finished] = []
    store = FileStore(tmp_path, 2**30)
    gate = threading.Event()

    def held(*_: object) -> int:
        gate.wait()
        raise StoreFault(Reason.ABSENT)

    def again() -> None:
        """The job's last item has ended: it is told before its thread says so, and its number used for another."""
        nonlocal now
        now += 100.0
        told.extend(transfers.finished())
        monkeypatch.setattr(store, "get", held)
        transfers.submit(1, [Item(KEYS[1], 0)], NAMESPACE, now + 60.0, load=True)

    def ended() -> bool:
        told.extend(transfers.finished())
        return len(told) == 2

    lock: Any = Watched(1, again)
    monkeypatch.setattr(module, "_Job", partial(module._Job, lock=lock))
    transfers = Transfers(store, np.zeros((1, CHUNK), np.uint8), Tally(), readers=1, clock=lambda: now)
    try:
        transfers.submit(1, [Item(KEYS[0], 0)], NAMESPACE, now + 60.0, load=True)
        wait_for(lambda: bool(told))
        gate.set()
        wait_for(ended)
        assert [found.failed for found in told] == [(KEYS[0],), (KEYS[1],)]
        assert transfers.pending(load=True) == 0
    finally:
        gate.set()
        transfers.close()
        store.close()
