"""Jobs between a store and slots: given up at any moment, nothing touches a slot afterwards."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.connector.store.servers import ended, wait_for

from kvserving_connector.store.client import WRONG_OBJECT, Part, Reason, StoreFault, Usage
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.framing import HEADER_BYTES, header, object_name
from kvserving_connector.store.tally import Event, Tally
from kvserving_connector.store.transfers import Finished, Item, Transfers

NAMESPACE = bytes(32)
CHUNK = 5000
KEYS = [bytes([index]) * 36 for index in range(12)]


class Memory:
    """A store in this process; ``gate`` holds every call back while it is closed."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        self.deleted: list[str] = []
        self.fault: Exception | None = None

    def _pass(self) -> None:
        self.waiting.release()
        self.gate.wait()
        if self.fault is not None:
            raise self.fault

    def exists(self, keys: Sequence[str], deadline: float) -> list[bool | Reason]:
        return [key in self.objects for key in keys]

    def get(self, key: str, into: memoryview, deadline: float) -> int:
        self._pass()
        data = self.objects.get(key)
        if data is None:
            raise StoreFault(Reason.ABSENT)
        into[: len(data)] = data
        return len(data)

    def put(self, key: str, parts: Sequence[Part], deadline: float) -> bool:
        self._pass()
        if key in self.objects:
            return False
        self.objects[key] = b"".join(parts)
        return True

    def delete(self, key: str, deadline: float) -> None:
        self.deleted.append(key)
        self.objects.pop(key, None)

    def usage(self, deadline: float) -> Usage:
        return Usage(0, None)

    def close(self) -> None:
        self.gate.set()


class Rig:
    def __init__(self, store: Memory) -> None:
        self.store = store
        self.slots: npt.NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (32, CHUNK), np.uint8)
        self.tally = Tally()
        self.transfers = Transfers(store, self.slots, self.tally)
        self._job = 0

    def run(self, *, load: bool, seconds: float = 5.0, keys: Sequence[bytes] = KEYS, first: int = 0) -> int:
        self._job += 1
        items = [Item(key, first + index) for index, key in enumerate(keys)]
        self.transfers.submit(self._job, items, NAMESPACE, time.monotonic() + seconds, load=load)
        return self._job

    def end(self, number: int = 1) -> list[Finished]:
        return ended(self.transfers, number)


@contextmanager
def rig(store: Memory | None = None) -> Iterator[Rig]:
    made = Rig(store or Memory())
    try:
        yield made
    finally:
        made.store.close()
        made.transfers.close()


def test_what_was_stored_is_loaded() -> None:
    with rig() as it:
        it.run(load=False)
        (stored,) = it.end()
        assert stored.done
        assert not stored.failed
        assert not stored.load
        assert stored.bytes == 12 * CHUNK
        it.run(load=True, first=16)
        (loaded,) = it.end()
        assert set(loaded.done) == set(KEYS)
        assert (it.slots[16:28] == it.slots[:12]).all()
        counts = it.tally.take()
        assert counts[Event.READ, ""] == counts[Event.WRITTEN, ""] == 12
        assert counts[Event.READ_BYTES, ""] == 12 * CHUNK
        assert it.transfers.pending(load=True) == it.transfers.pending(load=False) == 0


def test_what_the_store_has_is_not_written_again() -> None:
    with rig() as it:
        it.run(load=False, keys=KEYS[:3])
        it.end()
        it.run(load=False, keys=KEYS[:4])
        (again,) = it.end()
        assert not again.failed
        assert set(again.present) == set(KEYS[:3])
        assert again.bytes == CHUNK
        assert it.tally.take()[Event.SKIP, "present"] == 3


def test_a_job_without_chunks_ends() -> None:
    with rig() as it:
        it.run(load=True, keys=[])
        assert it.end()[0].done == ()


def test_good_chunks_of_a_job_are_kept_and_bad_objects_are_removed() -> None:
    with rig() as it:
        it.run(load=False)
        it.end()
        name = [object_name(NAMESPACE, key) for key in KEYS]
        objects = it.store.objects
        objects[name[0]] = objects[name[0]][:-1]
        flipped = bytearray(objects[name[1]])
        flipped[HEADER_BYTES + 7] ^= 4
        objects[name[1]] = bytes(flipped)
        objects[name[2]], objects[name[3]] = objects[name[3]], objects[name[2]]
        del objects[name[4]]
        objects[name[5]] = b""
        body = bytes(CHUNK)
        objects[name[6]] = header(b"\1" * 32, KEYS[6], memoryview(body)) + body
        before = it.slots[16:].copy()
        it.run(load=True, first=16)
        (finished,) = it.end()
        assert set(finished.failed) == set(KEYS[:7])
        assert set(finished.done) == set(KEYS[7:])
        assert (it.slots[16:23] == before[:7]).all()
        assert (it.slots[23:28] == it.slots[7:12]).all()
        counts = it.tally.take()
        reasons = {label: number for (event, label), number in counts.items() if event is Event.MISS}
        assert reasons == {"truncated": 2, "checksum": 1, "key": 2, "absent": 1, "namespace": 1}
        wait_for(lambda: set(it.store.deleted) == {name[0], name[1], name[2], name[3], name[5], name[6]})


def test_nothing_writes_a_slot_after_its_load_was_given_up() -> None:
    with rig() as it:
        it.run(load=False)
        it.end()
        it.store.gate.clear()
        it.tally.take()
        began = time.monotonic()
        it.run(load=True, seconds=0.2, first=16)
        (given_up,) = it.end()
        assert time.monotonic() - began < 10
        assert given_up.timed_out
        assert not given_up.done
        assert set(given_up.failed) == set(KEYS)
        counts = it.tally.take()
        assert counts[Event.TIMEOUT, "load"] == 1
        assert counts[Event.MISS, "timeout"] == 12
        it.slots[16:28] = 7
        it.store.gate.set()
        it.run(load=True, keys=KEYS[:1], first=30)
        it.end()
        assert (it.slots[30] == it.slots[0]).all()
        assert (it.slots[16:28] == 7).all()


def test_what_was_read_before_a_load_was_given_up_is_kept_and_counted() -> None:
    with rig() as it:
        it.run(load=False)
        it.end()
        it.tally.take()
        release = threading.Event()
        get = it.store.get

        def hang_at_the_last(key: str, into: memoryview, deadline: float) -> int:
            if key == object_name(NAMESPACE, KEYS[-1]):
                release.wait()
            return get(key, into, deadline)

        it.store.get = hang_at_the_last  # type: ignore[method-assign]
        it.run(load=True, seconds=0.4, first=16)
        (given_up,) = it.end()
        release.set()
        assert given_up.timed_out
        assert set(given_up.done) == set(KEYS[:-1])
        assert (it.slots[16:27] == it.slots[:11]).all()
        counts = it.tally.take()
        assert counts[Event.READ, ""] == 11
        assert counts[Event.READ_BYTES, ""] == 11 * CHUNK == given_up.bytes
        assert counts[Event.MISS, "timeout"] == 1


def test_a_store_that_was_given_up_reads_no_slot_afterwards() -> None:
    with rig() as it:
        it.store.gate.clear()
        expected = it.slots[:12].copy()
        it.run(load=False, seconds=0.2)
        (given_up,) = it.end()
        assert given_up.timed_out
        assert not given_up.done
        it.slots[:12] = 9
        it.store.gate.set()
        wait_for(lambda: len(it.store.objects) > 0)
        time.sleep(0.1)
        for index, key in enumerate(KEYS):
            data = it.store.objects.get(object_name(NAMESPACE, key))
            assert data is None or data[HEADER_BYTES:] == expected[index].tobytes()


def test_stores_that_hang_delay_no_load() -> None:
    with rig() as it:
        it.run(load=False, keys=KEYS[:2])
        it.end()
        release = threading.Event()
        put = it.store.put

        def hang(key: str, parts: Sequence[Part], deadline: float) -> bool:
            release.wait()
            return put(key, parts, deadline)

        it.store.put = hang  # type: ignore[method-assign]
        it.run(load=False, keys=KEYS[2:], seconds=30)
        it.run(load=True, keys=KEYS[:2], first=16)
        assert it.end()[0].load
        release.set()
        it.end()


def test_draining_ends_at_the_deadline_and_leaves_nothing_open() -> None:
    with rig() as it:
        it.store.gate.clear()
        it.run(load=True, seconds=0.3)
        it.run(load=False, seconds=0.4)
        began = time.monotonic()
        it.transfers.drain()
        assert 0.3 < time.monotonic() - began < 10
        assert len(it.transfers.finished()) == 2


def test_draining_waits_for_what_can_end() -> None:
    with rig() as it:
        it.run(load=False)
        it.transfers.drain()
        (finished,) = it.transfers.finished()
        assert not finished.failed


def test_closing_ends_open_jobs_and_later_ones_at_once() -> None:
    with rig() as it:
        it.store.gate.clear()
        it.run(load=True, seconds=60)
        it.store.waiting.acquire(timeout=5)
        closer = threading.Thread(target=it.transfers.close, args=(0.2,))
        closer.start()
        closer.join(5)
        assert not closer.is_alive()
        assert set(it.end()[0].failed) == set(KEYS)
        it.run(load=True)
        assert not it.end()[0].done


def test_an_unexpected_error_is_a_miss_and_the_threads_live_on(caplog: pytest.LogCaptureFixture) -> None:
    with rig() as it:
        it.run(load=False)
        it.end()
        it.store.fault = RuntimeError("broken client")
        it.run(load=True, first=16)
        assert set(it.end()[0].failed) == set(KEYS)
        it.store.fault = None
        it.run(load=True, first=16)
        assert set(it.end()[0].done) == set(KEYS)
        assert "broken client" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("broken client"), StoreFault(Reason.UNREACHABLE)], ids=["any", "fault"])
def test_a_wrong_object_that_cannot_be_removed_is_one_miss_and_costs_no_other_chunk(error: Exception) -> None:
    with rig() as it:
        it.run(load=False)
        it.end()
        it.tally.take()
        wrong = object_name(NAMESPACE, KEYS[0])
        it.store.objects[wrong] = b"cut"
        tried = threading.Semaphore(0)
        get, end = it.store.get, threading.Event()

        def fail(key: str, deadline: float) -> None:
            tried.release()
            raise error

        def hold_the_last(key: str, into: memoryview, deadline: float) -> int:
            if key == object_name(NAMESPACE, KEYS[-1]):
                end.wait()
            return get(key, into, deadline)

        it.store.delete = fail  # type: ignore[method-assign]
        it.store.get = hold_the_last  # type: ignore[method-assign]
        it.run(load=True, seconds=30, first=16)
        assert tried.acquire(timeout=10)
        # The reader that failed serves on: what it says of the removal comes before its next chunk.
        counted: dict[Any, int] = {}

        def told() -> bool:
            counted.update(it.tally.take())
            return any(event is Event.SKIP for event, _ in counted)

        wait_for(told)
        end.set()
        (finished,) = it.end()
        assert set(finished.done) == set(KEYS[1:])
        assert finished.failed == finished.wrong == (KEYS[0],)
        assert (it.slots[17:28] == it.slots[1:12]).all()
        counted |= it.tally.take()
        assert {key: number for key, number in counted.items() if key[0] is Event.MISS} == {
            (Event.MISS, "truncated"): 1
        }
        assert counted[Event.READ, ""] == 11


def test_jobs_from_many_threads_end_once_each(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 2**30)
    slots = np.random.default_rng(1).integers(0, 256, (64, CHUNK), np.uint8)
    transfers = Transfers(store, slots, Tally())

    def submit(offset: int) -> None:
        for step in range(50):
            number = offset * 1000 + step
            items = [Item(os.urandom(36), (offset * 8 + index) % 64) for index in range(8)]
            transfers.submit(number, items, NAMESPACE, time.monotonic() + 10, load=bool(step % 2))

    threads = [threading.Thread(target=submit, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    jobs = ended(transfers, 200)
    assert sorted(job.job for job in jobs) == sorted(o * 1000 + s for o in range(4) for s in range(50))
    assert all(len(job.done) + len(job.failed) == 8 for job in jobs)
    transfers.close()
    store.close()


def test_given_up_jobs_leave_nothing_queued_while_the_store_hangs() -> None:
    with rig() as it:
        it.store.gate.clear()
        it.run(load=True, seconds=30, keys=KEYS[:6])
        for _ in range(50):
            it.run(load=True, seconds=-1)
            # Not what is loaded: a write that has begun ends once the store answers.
            it.run(load=False, seconds=-1, keys=KEYS[6:])
            it.transfers.finished()
        # The open job keeps what its four readers have not taken.
        wait_for(lambda: len(it.transfers._queues[True]) == 2)
        assert len(it.transfers._queues[False]) == 0
        it.store.gate.set()
        (last,) = it.end()
        assert len(last.failed) == 6


@pytest.mark.parametrize("reason", list(Reason))
def test_only_keys_whose_object_is_absent_or_wrong_are_told_as_such(reason: Reason) -> None:
    with rig() as it:
        it.store.fault = StoreFault(reason)
        it.run(load=True)
        (finished,) = it.end()
        assert set(finished.failed) == set(KEYS)
        about_objects = reason is Reason.ABSENT or reason in WRONG_OBJECT
        assert set(finished.wrong) == (set(KEYS) if about_objects else set())
        assert finished.silent is (reason is Reason.TIMEOUT)
        assert not finished.timed_out
