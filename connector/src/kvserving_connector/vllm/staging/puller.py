"""The thread that reads staged prompts: vLLM's steps are too far apart to drive a pipeline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable

from kvserving_connector.core.staging_pull import Pipeline, Pull, State
from kvserving_connector.settings import logger
from kvserving_connector.vllm.staging.transport import NixlTransport, Peer

JOIN_SECONDS = 10.0
_FLUSH_POLL_SECONDS = 2e-3


class Puller:
    """Owns the transport and the pipeline; everything else is told to it."""

    def __init__(self, transport: NixlTransport, pipeline: Pipeline, poll_seconds: float) -> None:
        """``poll_seconds`` lie between two looks at reads and copies of which none has ended."""
        self._transport = transport
        self._pipeline = pipeline
        self._poll_seconds = poll_seconds
        self._told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open: set[Pull] = set()
        self._ended = threading.Event()
        self._fault = ""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kvserving-staging", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def meet(self, engine_id: str, peer: Peer) -> None:
        """Tell of an engine to read from."""
        self._told.put(lambda: self._transport.meet(engine_id, peer))

    def forget(self, name: str) -> None:
        """Tell that the engine whose agent has this name is gone."""
        self._told.put(lambda: self._transport.forget(name))

    def submit(self, pull: Pull) -> None:
        """Read a prompt; its state tells how it goes."""
        self._told.put(lambda: self._take(pull))

    def wait(self, pulls: Iterable[Pull], seconds: float) -> None:
        """Return as soon as one of ``pulls`` has ended, and after so many seconds at most."""
        self._ended.clear()
        if not any(pull.final for pull in pulls):
            self._ended.wait(seconds)

    def close(self) -> None:
        """Fail what is under way and end the thread, when nothing of it writes into blocks any more."""
        self._told.put(self._close)
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            logger.warning("KVServing: a staged read has not ended within %g s of the engine's end", JOIN_SECONDS)

    def _run(self) -> None:
        self._transport.enter()
        while not (self._closing and not self._open):
            try:
                self._turn()
            except Exception as error:
                # A fault of the device or of this code: nothing is known of what is under way, so nothing goes on.
                logger.exception("KVServing: reading staged prompts has ended; their loads fail from now on")
                self._fault = f"reading staged prompts has ended with {type(error).__name__}: {error}"
                self._finish()
                break
        for pull in self._open:
            self._fail(pull, self._fault)
        while not self._closing:
            self._told.get()()

    def _finish(self) -> None:
        """Wait for the last copies, if the device still can: the pulls end either way."""
        try:
            self._transport.finish()
        except Exception:
            logger.exception("KVServing: the copies of staged prompts cannot be waited for")

    def _turn(self) -> None:
        moved = self._pipeline.turn(time.perf_counter())
        going = {pull for pull in self._open if not pull.final}
        if len(going) < len(self._open):
            self._ended.set()
        self._open = going
        try:
            if self._pipeline.idle and not self._closing:
                self._told.get(timeout=None if self._transport.flushed() else _FLUSH_POLL_SECONDS)()
                moved = True
            while True:
                (self._told.get_nowait() if moved else self._told.get(timeout=self._poll_seconds))()
                moved = True
        except queue.Empty:
            return

    def _take(self, pull: Pull) -> None:
        if self._fault or self._closing:
            self._fail(pull, self._fault or "the engine ends")
            return
        self._open.add(pull)
        self._pipeline.submit(pull, time.perf_counter())

    def _close(self) -> None:
        self._closing = True
        self._pipeline.cancel("the engine ends")

    def _fail(self, pull: Pull, reason: str) -> None:
        pull.reason = reason
        pull.began = pull.ended = pull.began or time.perf_counter()
        pull.state = State.FAILED
        self._ended.set()
