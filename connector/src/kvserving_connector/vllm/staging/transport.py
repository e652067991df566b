"""Staged reads over NIXL into one rank's pool, and out of it into the cache by torch's kernels."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from kvserving_connector.core.staging import HEADER_BYTES
from kvserving_connector.core.staging_pull import Pull, TransportError
from kvserving_connector.settings import logger
from kvserving_connector.vllm.staging.rows import Rows
from kvserving_connector.vllm.staging.wire import Pool

CELLS = 64
CELL_BYTES = CELLS * HEADER_BYTES
# What was sent is under way that long at most: it leaves with the next turns of the agent, which has no thread.
FLUSH_SECONDS = 1.0
RELEASE_SECONDS = 10.0
"""For how long NIXL may refuse to release a read that was given up before it is told."""


def new_agent(backends: Sequence[str]) -> Any:
    """Return a NIXL agent for ``NixlTransport``: without a progress thread, so it moves when it is asked how it goes.

    While a copy between GPUs is under way that thread arms UCX's wake-up all the time, and each time a host function
    is queued behind the copy on its stream. The next read waits for all of them: two reads in a row have 55 to 75 % of
    the link (``python -m e2e.gpu.reads``).
    """
    from vllm.distributed import nixl_utils

    config = nixl_utils.nixl_agent_config(backends=list(backends), enable_prog_thread=False)
    return nixl_utils.NixlWrapper(str(uuid.uuid4()), config)


@dataclass(frozen=True)
class Peer:
    """A prefill rank: its NIXL agent's name and metadata, and its pool."""

    name: str
    metadata: bytes
    pool: Pool


@dataclass(eq=False)
class _Read:
    peer: str
    handle: Any
    released: bool = False
    refused: float | None = None
    """When NIXL first refused to release it."""


class NixlTransport:
    """For the pulling thread alone, as its NIXL agent is; ``pool`` begins with the cells."""

    def __init__(self, agent: Any, pool: torch.Tensor, chunk_bytes: int, memory: str, rows: Rows) -> None:
        self._agent = agent
        self._pool = pool
        self._chunk_bytes = chunk_bytes
        self._memory = memory
        self._rows = rows
        self._device = max(pool.get_device(), 0)
        self._stream = torch.cuda.Stream(pool.device) if pool.is_cuda else None
        self._peers: dict[str, Peer] = {}
        self._loaded: dict[str, str] = {}
        self._broken: set[str] = set()
        self._flying: Counter[str] = Counter()
        self._sent: float | None = None
        self._told_of_release = False
        self._places: WeakKeyDictionary[Pull, torch.Tensor] = WeakKeyDictionary()

    def enter(self) -> None:
        """Make the device that of this thread: UCX takes its memory from the thread's context."""
        if self._stream is not None:
            torch.cuda.set_device(self._pool.device)
            # The context is this thread's with the first call that needs it.
            self._stream.synchronize()

    def meet(self, engine_id: str, peer: Peer) -> None:
        """Take a peer that a handshake found, in place of an earlier one of that engine."""
        self._unload(engine_id)
        self._peers[engine_id] = peer

    def forget(self, name: str) -> None:
        """Forget the peer whose agent has this name."""
        for engine_id in [each for each, peer in self._peers.items() if peer.name == name]:
            del self._peers[engine_id]
            self._unload(engine_id)

    def read_header(self, pull: Pull, cell: int) -> _Read:
        """See ``Transport``."""
        handle = self._begin(pull.peer, pull.slot.offset, HEADER_BYTES, cell * HEADER_BYTES)
        with self._on_stream():
            self._indices(pull)
        return handle

    def read_rows(self, pull: Pull, first: int, count: int, chunk: int) -> _Read:
        """See ``Transport``."""
        offset = pull.slot.rows_offset + first * pull.slot.row_bytes
        return self._begin(pull.peer, offset, count * pull.slot.row_bytes, self._chunk(chunk))

    def done(self, handle: _Read) -> bool:
        """See ``Transport``."""
        try:
            state = self._agent.check_xfer_state(handle.handle)
        except Exception as error:
            self._broken.add(handle.peer)
            raise TransportError(f"reading its slot failed: {type(error).__name__}: {error}") from error
        if state == "PROC":
            return False
        if state != "DONE":
            self._broken.add(handle.peer)
            raise TransportError(f"reading its slot ended with the state {state}")
        self._release(handle)
        return True

    def settled(self, handle: _Read) -> bool:
        """See ``Transport``. NIXL cannot take a read back, so one that goes on is waited for."""
        try:
            if self._agent.check_xfer_state(handle.handle) == "PROC":
                return False
        except Exception as error:
            logger.debug("KVServing: a read that was given up ended with %s", error)
        try:
            self._release(handle)
        except Exception as error:
            self._not_released(handle, error)
            return False
        return True

    def generations(self, cell: int) -> tuple[int, int]:
        """See ``Transport``."""
        at = cell * HEADER_BYTES
        with self._on_stream():
            first, second = self._pool[at : at + 16].view(torch.int64).tolist()
        return first, second

    def scatter(self, pull: Pull, row: int, count: int, chunk: int) -> Any:
        """See ``Transport``."""
        at = self._chunk(chunk)
        with self._on_stream():
            blocks = self._indices(pull)[row : row + count]
            self._rows.scatter(blocks, self._pool[at : at + count * pull.slot.row_bytes])
            if self._stream is None:
                return None
            event = torch.cuda.Event()
            event.record(self._stream)
            return event

    def scattered(self, handle: Any) -> bool:
        """See ``Transport``."""
        return handle is None or bool(handle.query())

    def notify(self, pull: Pull) -> None:
        """See ``Transport``. One that cannot be sent costs the slot until its lease is over, as in vLLM."""
        self._sent = time.monotonic()
        try:
            self._agent.send_notif(self._load(pull.peer), notif_msg=pull.notify)
        except Exception as error:
            logger.warning("KVServing: %s could not be told that its slot was read: %s", pull.peer, error)

    def flushed(self) -> bool:
        """Let what was sent go on; return whether nothing can be under way any more."""
        if self._sent is None:
            return True
        try:
            self._agent.get_new_notifs()
        except Exception as error:
            logger.debug("KVServing: what was sent of staged reads could not be looked after: %s", error)
        if time.monotonic() - self._sent > FLUSH_SECONDS:
            self._sent = None
        return self._sent is None

    def finish(self) -> None:
        """Wait until no copy writes into blocks any more."""
        if self._stream is not None:
            self._stream.synchronize()

    def _begin(self, engine_id: str, offset: int, size: int, at: int) -> _Read:
        name = self._load(engine_id)
        pool = self._peers[engine_id].pool
        if offset + size > pool.bytes:
            raise TransportError(f"its slot reaches beyond the {pool.bytes} bytes of the other side's pool")
        handle = None
        try:
            here = self._agent.get_xfer_descs([(self._pool.data_ptr() + at, size, self._device)], self._memory)
            there = self._agent.get_xfer_descs([(pool.base + offset, size, pool.device)], pool.memory)
            handle = self._agent.initialize_xfer("READ", here, there, name, b"")
            if self._agent.transfer(handle) == "ERR":
                raise RuntimeError("NIXL refused the transfer")
        except Exception as error:
            self._broken.add(engine_id)
            if handle is not None:
                self._agent.release_xfer_handle(handle)
            raise TransportError(f"reading its slot could not begin: {type(error).__name__}: {error}") from error
        self._flying[engine_id] += 1
        return _Read(engine_id, handle)

    def _load(self, engine_id: str) -> str:
        if engine_id in self._broken:
            self._unload(engine_id)
        peer = self._peers.get(engine_id)
        if peer is None:
            raise TransportError("the engine that holds its slot is gone")
        if engine_id in self._broken:
            raise TransportError("the connection to the engine that holds its slot is broken")
        if engine_id not in self._loaded:
            try:
                self._loaded[engine_id] = self._agent.add_remote_agent(peer.metadata)
            except Exception as error:
                raise TransportError(f"the engine that holds its slot cannot be reached: {error}") from error
        return self._loaded[engine_id]

    def _unload(self, engine_id: str) -> None:
        """Forget the connection, once no read is under way on it."""
        if self._flying[engine_id]:
            self._broken.add(engine_id)
            return
        self._broken.discard(engine_id)
        if (name := self._loaded.pop(engine_id, None)) is not None:
            try:
                self._agent.remove_remote_agent(name)
            except Exception as error:
                logger.debug("KVServing: NIXL had forgotten the agent of %s already: %s", engine_id, error)

    def _release(self, handle: _Read) -> None:
        if not handle.released:
            self._agent.release_xfer_handle(handle.handle)
            handle.released = True
            self._flying[handle.peer] -= 1

    def _not_released(self, handle: _Read, error: Exception) -> None:
        """Warn once of a read that stays: where it was to be written is not used again."""
        now = time.monotonic()
        handle.refused = now if handle.refused is None else handle.refused
        if self._told_of_release or now - handle.refused < RELEASE_SECONDS:
            logger.debug("KVServing: a read that was given up is not released yet: %s", error)
            return
        self._told_of_release = True
        logger.warning(
            "KVServing: NIXL has refused for %.0f s to release a read from engine %s that was given up (%s: %s): its "
            "part of the staging memory is not used any more. Restart this engine where staged loads wait for room "
            "(kvserving:staged_load_wait_seconds)",
            now - handle.refused,
            handle.peer,
            type(error).__name__,
            error,
        )

    def _indices(self, pull: Pull) -> torch.Tensor:
        """Return a pull's blocks on the device; they are brought there once, as that takes longer than a copy."""
        if (found := self._places.get(pull)) is None:
            found = self._places[pull] = self._rows.indices(pull.blocks)
        return found

    def _chunk(self, number: int) -> int:
        return CELL_BYTES + number * self._chunk_bytes

    def _on_stream(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()
