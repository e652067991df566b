"""One server of a store: its idle connections, and whether it is worth asking.

A server that fails is not asked again by anybody until a thread of its own has had an answer from it: a request never
waits twice for a store that hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from kvserving_connector.store.address import Address, Credentials
from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.resp import STALL_SECONDS, Connection, ServerError, encode

logger = logging.getLogger("vllm.kvserving")

T = TypeVar("T")
Request: TypeAlias = Callable[[Connection, float], None]
"""Sends on a connection, until a deadline; receives nothing."""

FAIR_SECONDS = 0.5
"""A call whose deadline left it less says nothing about the server when it times out."""

_FIRST_PAUSE = 0.25
_LAST_PAUSE = 10.0
_WRITE_PAUSE = 5.0
_DOWN = frozenset({Reason.UNREACHABLE, Reason.TIMEOUT, Reason.DENIED, Reason.UNAVAILABLE, Reason.PROTOCOL})
_REFUSES_WRITES = frozenset({Reason.FULL, Reason.READ_ONLY})


@dataclass(frozen=True)
class Started:
    """A request under way: its connection, and what is needed to make it again."""

    connection: Connection
    request: Request
    began: float
    reused: bool


class Endpoint:
    """One server. Thread-safe; ``call`` uses as many connections as threads call at once."""

    def __init__(self, address: Address, credentials: Credentials, clock: Callable[[], float] = time.monotonic) -> None:
        self.address = address
        self._credentials = credentials
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._down: Reason | None = None
        self._no_writes: Reason | None = None
        self._writes_again = 0.0
        self._closed = threading.Event()

    @property
    def down(self) -> Reason | None:
        """Why the server is not asked at present; None while it is."""
        return self._down

    def call(self, operation: Callable[[Connection], T], deadline: float) -> T:
        """Run ``operation`` on a connection. It may run twice: an idle connection can have died unseen.

        Raises what the operation raises, or StoreFault when the server is down or the endpoint is closed.
        """
        return self.finish(self.begin(_nothing, deadline), operation, deadline)

    def begin(self, request: Request, deadline: float) -> Started:
        """Run ``request`` on a connection that is the caller's until it calls ``finish``. Raises as ``call`` does."""
        if self._closed.is_set():
            raise StoreFault(Reason.CLOSED)
        if self._down is not None:
            raise StoreFault(self._down, f"{self.address} is down")
        began = self._clock()
        try:
            connection = self._take()
            if connection is not None:
                try:
                    self._guard(connection, lambda connection: request(connection, deadline))
                    return Started(connection, request, began, reused=True)
                except StoreFault as fault:
                    if fault.reason is not Reason.UNREACHABLE:
                        raise
                    self._drop_idle()
            return Started(self._fresh(request, deadline), request, began, reused=False)
        except StoreFault as fault:
            self._note(fault, began)
            raise

    def finish(self, started: Started, answer: Callable[[Connection], T], deadline: float) -> T:
        """Run ``answer``, which receives what the request asked for. Both may run once more, as in ``call``."""
        try:
            if started.reused:
                try:
                    return self._run(started.connection, answer)
                except ServerError:
                    raise
                except StoreFault as fault:
                    if fault.reason is not Reason.UNREACHABLE:
                        raise
                    self._drop_idle()
                return self._run(self._fresh(started.request, deadline), answer)
            return self._run(started.connection, answer)
        except StoreFault as fault:
            self._note(fault, started.began)
            raise

    def check_writable(self) -> None:
        """Raise StoreFault when the server refused a write a short while ago: bodies are not sent to be refused."""
        reason = self._no_writes
        if reason is not None and self._clock() < self._writes_again:
            raise StoreFault(reason, f"{self.address} refused a write a short while ago")

    def note_write(self, fault: StoreFault) -> None:
        """Remember a refused write."""
        if fault.reason in _REFUSES_WRITES:
            self._no_writes, self._writes_again = fault.reason, self._clock() + _WRITE_PAUSE

    def close(self) -> None:
        """Close the idle connections and end the thread that waits for the server; calls that run end by themselves."""
        self._closed.set()
        self._drop_idle()

    def _fresh(self, request: Request, deadline: float) -> Connection:
        connection = Connection(self.address, self._credentials, deadline)
        self._guard(connection, lambda connection: request(connection, deadline))
        return connection

    def _run(self, connection: Connection, operation: Callable[[Connection], T]) -> T:
        try:
            result = self._guard(connection, operation)
        except ServerError:
            self._give_back(connection)
            raise
        self._give_back(connection)
        return result

    @staticmethod
    def _guard(connection: Connection, operation: Callable[[Connection], T]) -> T:
        """Run ``operation``; close the connection where it is unusable afterwards."""
        try:
            return operation(connection)
        except ServerError:
            raise
        except BaseException:
            connection.close()
            raise

    def _note(self, fault: StoreFault, began: float) -> None:
        if isinstance(fault, ServerError) and (fault.of_key or fault.reason is Reason.PROTOCOL):
            # One command that it refuses, or one key that it cannot serve.
            return
        fair = fault.reason is not Reason.TIMEOUT or self._clock() - began >= FAIR_SECONDS
        if fault.reason in _DOWN and fair:
            self._mark_down(fault)

    def _take(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed.is_set() and self._down is None:
                self._idle.append(connection)
                return
        connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _mark_down(self, fault: StoreFault) -> None:
        with self._lock:
            if self._down is not None or self._closed.is_set():
                return
            self._down = fault.reason
        self._drop_idle()
        logger.warning(
            "KVServing: store %s does not serve (%s). Its objects are misses until it answers again.",
            self.address,
            fault,
        )
        threading.Thread(target=self._await_server, name=f"kv-store-{self.address}", daemon=True).start()

    def _await_server(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.wait(pause):
            deadline = time.monotonic() + STALL_SECONDS
            try:
                connection = Connection(self.address, self._credentials, deadline)
                try:
                    # A server that still loads, or that wants a password, answers PING with an error.
                    connection.send(encode(b"PING"), deadline)
                    connection.reply(deadline)
                finally:
                    connection.close()
            except StoreFault as fault:
                self._down = fault.reason
                pause = min(pause * 2, _LAST_PAUSE)
                continue
            self._down = None
            logger.info("KVServing: store %s serves again", self.address)
            return


def _nothing(_connection: Connection, _deadline: float) -> None:
    pass
