"""vLLM's NIXL agent on decode, by which a read that may have outlasted its lease fails.

vLLM's decode uses what it has read whenever the read ends; prefill, whose lease was over, only logs that the blocks may
be another prompt's. Here the read's end is an error then, for vLLM a failed load like any other: the prompt is computed
again, or the request fails, as ``kv_load_failure_policy`` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kvserving_connector.core.leases import Leases
from kvserving_connector.settings import logger

UNTIL = "kvserving_taken_until"
"""Attribute of vLLM's request metadata, set by the scheduler's half: until when it could be taken, in Unix seconds."""
TERM = "kvserving_term"
"""Attribute of vLLM's request metadata, set by the scheduler's half: prefill's lease, in seconds, where it is told."""


@dataclass(eq=False)
class _Read:
    request_id: str
    engine_id: str
    agents: tuple[str, ...]
    began: float
    lease_seconds: int
    until: float | None
    late: bool = False


class LeaseAgent:
    """Passes all on to NIXL's agent; reads that begin within ``reading`` must end while their lease is certain."""

    def __init__(
        self,
        agent: Any,
        lease_seconds: int,
        clock: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        """``lease_seconds`` is this engine's, taken for the lease of a prefill that does not tell its own."""
        self._agent = agent
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._unix = unix
        self._leases = Leases(lease_seconds)
        self._current: _Read | None = None
        self._reads: dict[Any, _Read] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    @contextmanager
    def reading(self, request_id: str, meta: Any, agents: Iterable[str]) -> Iterator[None]:
        """Take what is transferred within as the reads of a request, of which vLLM has ``meta``, from ``agents``."""
        now, taken_until, until = self._clock(), getattr(meta, UNTIL, None), None
        remote, names, lease = meta.remote, tuple(agents), getattr(meta, TERM, self._lease_seconds)
        if taken_until is not None:
            taken_until += now - self._unix()
            until = self._leases.certain_until(remote.request_id, names, taken_until, lease)
        self._current = _Read(request_id, remote.engine_id, names, now, lease, until)
        try:
            yield
        finally:
            self._current = None

    def send_notif(self, name: str, notif_msg: bytes, *arguments: Any, **more: Any) -> Any:
        """As NIXL, and note heartbeats."""
        # Before it is sent: the lease is prolonged from when it arrives, which is later.
        now = self._clock()
        result = self._agent.send_notif(name, notif_msg, *arguments, **more)
        self._leases.sent(name, notif_msg, now)
        return result

    def transfer(self, handle: Any, *arguments: Any, **more: Any) -> Any:
        """As NIXL, and note until when the read is certain."""
        if self._current is not None:
            self._reads[handle] = read = replace(self._current)
            self._leases.began(read, read.agents)
        return self._agent.transfer(handle, *arguments, **more)

    def check_xfer_state(self, handle: Any) -> Any:
        """As NIXL, but a read that is found to have ended after its lease was certain has ended with an error."""
        state = self._agent.check_xfer_state(handle)
        read = self._reads.get(handle)
        if state != "DONE" or read is None or read.until is None:
            return state
        if not read.late and self._clock() > read.until:
            read.late = True
            self._tell(read, read.until)
        return "ERR" if read.late else state

    def release_xfer_handle(self, handle: Any) -> Any:
        """As NIXL."""
        result = self._agent.release_xfer_handle(handle)
        if (read := self._reads.pop(handle, None)) is not None:
            self._leases.ended(read, read.agents, self._clock())
        return result

    def remove_remote_agent(self, name: str) -> Any:
        """As NIXL."""
        self._leases.forget(name)
        return self._agent.remove_remote_agent(name)

    def _tell(self, read: _Read, until: float) -> None:
        now = self._clock()
        logger.error(
            "KVServing: the KV of request %s was read from engine %s for %.1f s and %.1f s beyond what its lease was "
            "certain to last: it may be another prompt's and is not used. Transfers are too slow for kv_lease_duration "
            "%d, or this engine stood still; make spec.transfer.lease four times the longest and some seconds more",
            read.request_id,
            read.engine_id,
            now - read.began,
            now - until,
            read.lease_seconds,
        )
