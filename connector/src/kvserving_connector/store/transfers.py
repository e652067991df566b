"""Loads and stores between a store and slots of host memory, on threads of their own.

Every transfer goes through a bounce buffer. A load is received and verified there and copied to its slot under the
job's lock, and only while the job is open; a store is copied from its slot before it is sent. So a job can be given
up at any moment, however long its system call hangs: afterwards nothing reads or writes its slots.
"""

from __future__ import annotations

import logging
import mmap
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvserving_connector.store.client import WRONG_OBJECT, Reason, StoreClient, StoreFault
from kvserving_connector.store.framing import HEADER_BYTES, check, header, object_name
from kvserving_connector.store.tally import Event, Tally

# Room for the end of a reply behind the object: see StoreClient.get.
_SLACK_BYTES = 64
_DELETE_SECONDS = 1.0

logger = logging.getLogger("vllm.kvserving")

Slots: TypeAlias = "npt.NDArray[np.uint8]"


@dataclass(frozen=True)
class Item:
    """One chunk of a job: its key and the number of its slot."""

    key: bytes
    slot: int


@dataclass(frozen=True)
class Finished:
    """A job that ended: the keys that were transferred, those that were not, and what it took.

    For a store ``present`` are the keys that the store had already; they count as transferred. ``timed_out`` says that
    the job ran into its deadline, ``silent`` that it did or that the store left something of it without an answer.
    ``wrong`` are the failed keys whose object is absent or not what its key says; the others say nothing about theirs.
    """

    job: int
    load: bool
    done: tuple[bytes, ...]
    failed: tuple[bytes, ...]
    present: tuple[bytes, ...]
    wrong: tuple[bytes, ...]
    bytes: int
    seconds: float
    timed_out: bool
    silent: bool


@dataclass(eq=False)
class _Job:
    number: int
    load: bool
    deadline: float
    namespace: bytes
    items: Sequence[Item]
    began: float
    left: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    open: bool = True
    done: list[bytes] = field(default_factory=list)
    present: list[bytes] = field(default_factory=list)
    wrong: list[bytes] = field(default_factory=list)
    timed_out: bool = False
    silent: bool = False


class Transfers:
    """The threads, their queue and the jobs. Methods are thread-safe; ``finished`` is for one thread.

    ``slots`` has one row per chunk of host memory; no thread keeps a view of it beyond a copy, so that it can be
    unmapped after ``close``. ``readers`` threads serve loads only and ``writers`` stores only, so that stores to a slow
    store delay no load. ``before_store`` is called by a writer before each of its stores.
    """

    def __init__(
        self,
        client: StoreClient,
        slots: Slots,
        tally: Tally,
        *,
        readers: int = 4,
        writers: int = 2,
        before_store: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._slots: Slots | None = slots
        self._chunk_bytes = slots.shape[1]
        self._tally = tally
        self._clock = clock
        self._before_store = before_store
        self._condition = threading.Condition()
        self._queues: dict[bool, deque[tuple[_Job, Item]]] = {True: deque(), False: deque()}
        self._jobs: dict[bool, OrderedDict[int, _Job]] = {True: OrderedDict(), False: OrderedDict()}
        self._pending = {True: 0, False: 0}
        self._finished: list[Finished] = []
        self._stop = False
        self._threads = [
            threading.Thread(target=self._work, args=(load,), name=f"kv-store-{name}-{index}", daemon=True)
            for load, name, number in ((True, "read", readers), (False, "write", writers))
            for index in range(number)
        ]
        for thread in self._threads:
            thread.start()

    def pending(self, *, load: bool) -> int:
        """Return the number of chunks of open loads, or of open stores."""
        return self._pending[load]

    def submit(self, job: int, items: Sequence[Item], namespace: bytes, deadline: float, *, load: bool) -> None:
        """Start a load of ``items`` into their slots, or a store from them. Returns at once.

        ``job`` must be a number that no open job has, and no two items may have one key. The slots are not touched
        after the job is in ``finished``.
        """
        record = _Job(job, load, deadline, namespace, items, self._clock(), len(items))
        with self._condition:
            self._jobs[load][job] = record
            self._pending[load] += len(items)
            self._queues[load].extend((record, item) for item in items)
            if not items or self._stop:
                self._close(record)
            # Readers and writers wait on one condition, so that a single notification could wake the wrong kind.
            self._condition.notify_all()

    def finished(self) -> list[Finished]:
        """Return the jobs that ended since the last call, among them those whose deadline has passed."""
        self._give_up(self._clock())
        with self._condition:
            finished, self._finished = self._finished, []
        return finished

    def drain(self) -> None:
        """Wait until every job submitted so far has ended, at the latest at its deadline."""
        with self._condition:
            while jobs := [*self._jobs[True].values(), *self._jobs[False].values()]:
                left = min(job.deadline for job in jobs) - self._clock()
                if left > 0:
                    self._condition.wait(left)
                else:
                    self._expire(self._clock(), wait=True)

    def close(self, seconds: float = 5.0) -> None:
        """Give up all jobs and end the threads, waiting ``seconds`` for them in all; a hung one is left behind.

        A thread that is left behind holds no slot: its job is given up.
        """
        with self._condition:
            self._stop = True
            self._expire(float("inf"), wait=True)
            for queue in self._queues.values():
                queue.clear()
            self._slots = None
            self._condition.notify_all()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _give_up(self, now: float) -> None:
        with self._condition:
            self._expire(now, wait=False)

    def _expire(self, now: float, *, wait: bool) -> None:
        """End the jobs whose deadline is past. Called with the condition held."""
        before = len(self._finished)
        for load in (True, False):
            for job in [job for job in self._jobs[load].values() if job.deadline <= now]:
                # A copy that is under way takes microseconds; the scheduler looks again in its next step.
                if not job.lock.acquire(blocking=wait):
                    continue
                try:
                    # Where nothing is left, all of it has ended in time and only its thread has not said so yet.
                    if job.left:
                        timeout = now != float("inf")
                        if timeout:
                            self._count_timeout(job)
                        reason = Reason.TIMEOUT if timeout else Reason.CLOSED
                        self._tally.count(Event.MISS if load else Event.SKIP, reason, job.left)
                    self._close(job)
                finally:
                    job.lock.release()
        if len(self._finished) > before:
            self._drop_closed()

    def _drop_closed(self) -> None:
        """Take the items of closed jobs off the queues: threads that hang would not. Called with the condition held."""
        for queue in self._queues.values():
            for _ in range(len(queue)):
                try:
                    job, item = queue.popleft()
                except IndexError:
                    break  # A thread took the last one meanwhile: they need no lock for it.
                if job.open:
                    queue.append((job, item))

    def _count_timeout(self, job: _Job) -> None:
        """Count a job that ran into its deadline, once. Called with the job's lock held."""
        if not job.timed_out:
            job.timed_out = True
            self._tally.count(Event.TIMEOUT, "load" if job.load else "store")

    def _close(self, job: _Job) -> None:
        """Move an open job to the finished ones. Called with the condition held."""
        if self._jobs[job.load].get(job.number) is not job:
            return
        del self._jobs[job.load][job.number]
        job.open = False
        self._pending[job.load] -= len(job.items)
        done = set(job.done)
        moved = len(job.done) - len(job.present)
        if moved:
            self._tally.count(Event.READ if job.load else Event.WRITTEN, number=moved)
            self._tally.count(Event.READ_BYTES if job.load else Event.WRITTEN_BYTES, number=moved * self._chunk_bytes)
        self._finished.append(
            Finished(
                job.number,
                job.load,
                tuple(job.done),
                tuple(item.key for item in job.items if item.key not in done),
                tuple(job.present),
                tuple(job.wrong),
                len(done.difference(job.present)) * self._chunk_bytes,
                self._clock() - job.began,
                job.timed_out,
                job.timed_out or job.silent,
            )
        )
        self._condition.notify_all()

    def _work(self, load: bool) -> None:
        bounce = memoryview(mmap.mmap(-1, HEADER_BYTES + self._chunk_bytes + _SLACK_BYTES))
        queue = self._queues[load]
        transfer = self._load if load else self._store
        while True:
            try:
                # Without the lock while there is work: a thread that meets it taken costs two switches of threads.
                job, item = queue.popleft()
            except IndexError:
                with self._condition:
                    self._condition.wait_for(lambda: queue or self._stop)
                    if self._stop:
                        return
                continue
            if not job.open:
                continue
            detail = ""
            try:
                reason = transfer(job, item, bounce)
            except StoreFault as fault:
                reason, detail = fault.reason, fault.detail
            except Exception:
                # The thread serves all requests: what is wrong with one chunk must not end it.
                logger.exception("KVServing: a transfer with the store failed unexpectedly")
                reason = Reason.IO
            # Here alone, and before anything else is asked of the store: an item ends once.
            self._end(job, item, reason, bounce, detail)
            if load and reason in WRONG_OBJECT:
                self._remove(object_name(job.namespace, item.key))

    def _load(self, job: _Job, item: Item, bounce: memoryview) -> Reason | None:
        """Read an object into ``bounce``; return why it is none of ours, or None. Raises what the client raises."""
        length = self._client.get(object_name(job.namespace, item.key), bounce, job.deadline)
        return check(bounce[:length], job.namespace, item.key, self._chunk_bytes)

    def _store(self, job: _Job, item: Item, bounce: memoryview) -> Reason | None:
        """Write a slot as an object; return PRESENT where the store had it. Raises what the client raises."""
        with job.lock:
            if not job.open or self._slots is None:
                return Reason.CLOSED
            np.copyto(self._body(bounce), self._slots[item.slot])
        chunk = bounce[HEADER_BYTES : HEADER_BYTES + self._chunk_bytes]
        bounce[:HEADER_BYTES] = header(job.namespace, item.key, chunk)
        self._before_store()
        whole = bounce[: HEADER_BYTES + self._chunk_bytes]
        written = self._client.put(object_name(job.namespace, item.key), [whole], job.deadline)
        return None if written else Reason.PRESENT

    def _end(self, job: _Job, item: Item, reason: Reason | None, bounce: memoryview, detail: str) -> None:
        """Account for one item, and put what was loaded into its slot, unless the job was given up meanwhile.

        Both under one lock: a slot that is not told as loaded was not touched.
        """
        with job.lock:
            if not job.open:
                return
            if job.load and reason is None:
                reason = self._fill(item.slot, bounce)
            if reason is not None:
                job.silent |= reason is Reason.TIMEOUT
                if reason is Reason.ABSENT or reason in WRONG_OBJECT:
                    job.wrong.append(item.key)
                self._tally.count(Event.MISS if job.load else Event.SKIP, reason, detail=detail)
                if reason is Reason.TIMEOUT and self._clock() >= job.deadline:
                    self._count_timeout(job)
            present = reason is Reason.PRESENT and not job.load
            if reason is None or present:
                job.done.append(item.key)
            if present:
                job.present.append(item.key)
            job.left -= 1
            last = job.left == 0
        if last:
            with self._condition:
                self._close(job)

    def _fill(self, slot: int, bounce: memoryview) -> Reason | None:
        """Copy what was loaded into its slot; return why that cannot be. Called with the lock of an open job held."""
        try:
            assert self._slots is not None, "no job is open after close"
            np.copyto(self._slots[slot], self._body(bounce))
        except Exception:
            logger.exception("KVServing: a loaded chunk could not be put into its slot")
            return Reason.IO
        return None

    def _body(self, bounce: memoryview) -> Slots:
        return np.frombuffer(bounce, np.uint8, self._chunk_bytes, HEADER_BYTES)

    def _remove(self, name: str) -> None:
        """Delete an object that is not what its key says: a store keeps what it has, so it would stay for ever."""
        try:
            self._client.delete(name, time.monotonic() + _DELETE_SECONDS)
        except StoreFault as fault:
            self._tally.count(Event.SKIP, fault.reason, detail=fault.detail)
        except Exception:
            logger.exception("KVServing: a wrong object was not removed from the store")
            self._tally.count(Event.SKIP, Reason.IO)
