"""One server that speaks RESP: its idle connections, and whether it is worth asking (see ``outage``)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from kvserving_connector.store.address import Address, Credentials
from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.outage import Outage
from kvserving_connector.store.resp import Connection, ServerError, encode

T = TypeVar("T")
Request: TypeAlias = Callable[[Connection, float], None]
"""Sends on a connection, until a deadline; receives nothing."""

_WRITE_PAUSE = 5.0
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
        self._outage = Outage(str(address), self._ping, self._drop_idle, clock)
        self._no_writes: Reason | None = None
        self._writes_again = 0.0

    @property
    def down(self) -> Reason | None:
        """Why the server is not asked at present; None while it is."""
        return self._outage.down

    def call(self, operation: Callable[[Connection], T], deadline: float) -> T:
        """Run ``operation`` on a connection. It may run twice: an idle connection can have died unseen.

        Raises what the operation raises, or StoreFault when the server is down or the endpoint is closed.
        """
        return self.finish(self.begin(_nothing, deadline), operation, deadline)

    def begin(self, request: Request, deadline: float) -> Started:
        """Run ``request`` on a connection that is the caller's until it calls ``finish``. Raises as ``call`` does."""
        self._outage.check()
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
        self._outage.close()
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
        self._outage.note(fault, began)

    def _take(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._outage.closed and self._outage.down is None:
                self._idle.append(connection)
                return
        connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _ping(self, deadline: float) -> None:
        connection = Connection(self.address, self._credentials, deadline)
        try:
            # A server that still loads, or that wants a password, answers PING with an error.
            connection.send(encode(b"PING"), deadline)
            connection.reply(deadline)
        finally:
            connection.close()


def _nothing(_connection: Connection, _deadline: float) -> None:
    pass
