"""Whether a server is worth asking, whatever is spoken with it.

A server that fails is not asked again by anybody until a thread of its own has had an answer from it: a request never
waits twice for a store that hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kvserving_connector.store.client import Reason, StoreFault

logger = logging.getLogger("vllm.kvserving")

STALL_SECONDS = 2.0
"""A server that neither sends nor takes a byte for so long hangs."""
FAIR_SECONDS = 0.5
"""A call whose deadline left it less says nothing about the server when it times out."""

_FIRST_PAUSE = 0.25
_LAST_PAUSE = 10.0
_DOWN = frozenset({Reason.UNREACHABLE, Reason.TIMEOUT, Reason.DENIED, Reason.UNAVAILABLE, Reason.PROTOCOL})


class Outage:
    """What is known of one server. Thread-safe.

    ``probe`` asks the server for an answer that shows that it serves again, until a deadline, and raises StoreFault
    where it does not; it is called in a thread of this object. ``on_down`` is called when the server goes down.
    """

    def __init__(
        self,
        name: str,
        probe: Callable[[float], None],
        on_down: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``name``: the server's, for the log and the faults; ``clock`` gives the instants of ``note``."""
        self._name = name
        self._probe = probe
        self._on_down = on_down
        self._clock = clock
        self._lock = threading.Lock()
        self._down: Reason | None = None
        self._closed = threading.Event()

    @property
    def down(self) -> Reason | None:
        """Why the server is not asked at present; None while it is."""
        return self._down

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed.is_set()

    def check(self) -> None:
        """Raise StoreFault where the server is not to be asked."""
        if self._closed.is_set():
            raise StoreFault(Reason.CLOSED)
        down = self._down
        if down is not None:
            raise StoreFault(down, f"{self._name} is down")

    def note(self, fault: StoreFault, began: float) -> None:
        """Take in why a call failed that began at an instant: the server may be down with it."""
        fair = fault.reason is not Reason.TIMEOUT or self._clock() - began >= FAIR_SECONDS
        if fault.reason in _DOWN and fair:
            self._mark_down(fault)

    def close(self) -> None:
        """End the thread that waits for the server."""
        self._closed.set()

    def _mark_down(self, fault: StoreFault) -> None:
        with self._lock:
            if self._down is not None or self._closed.is_set():
                return
            self._down = fault.reason
        self._on_down()
        logger.warning(
            "KVServing: store %s does not serve (%s). Its objects are misses until it answers again.",
            self._name,
            fault,
        )
        threading.Thread(target=self._await_server, name=f"kv-store-{self._name}", daemon=True).start()

    def _await_server(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.wait(pause):
            try:
                self._probe(time.monotonic() + STALL_SECONDS)
            except StoreFault as fault:
                self._down = fault.reason
                pause = min(pause * 2, _LAST_PAUSE)
                continue
            self._down = None
            logger.info("KVServing: store %s serves again", self._name)
            return
