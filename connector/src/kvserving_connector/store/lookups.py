"""Whether a store has objects: asked in a thread of its own, so that a store that hangs holds up nobody else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from kvserving_connector.store.client import Reason, StoreClient
from kvserving_connector.store.tally import Event, Tally

PROBE_SECONDS = 2.0
"""A look-up that takes longer is a miss: the request waits for it before it is computed."""

# Names of one call: enough to hide the way to a server, few enough to stop early where the store has nothing.
_BATCH = 512

logger = logging.getLogger("vllm.kvserving")


@dataclass(frozen=True)
class Answer:
    """What the store said to one look-up.

    ``found`` is as StoreClient.exists says, for the names that were asked for: not those behind hundreds in a row of
    which the store has none.
    ``asked_at`` is when the store was asked. ``silent``: it left names without an answer, and held up whoever waited.
    ``answered``: it answered in time. Neither holds for an answer that says nothing about the store, such as that of a
    server that refuses connections, and for a look-up that waited for its turn too long to be asked.
    """

    ticket: int
    found: tuple[bool | Reason, ...]
    asked_at: float
    silent: bool
    answered: bool


class Lookups:
    """The thread and its queue. Methods are thread-safe; ``answers`` is for one thread.

    ``before`` is called by the thread before it asks and must not raise. ``seconds``: what the store has for a look-up.
    ``clock`` gives instants of ``time.monotonic``.
    """

    def __init__(
        self,
        client: StoreClient,
        *,
        before: Callable[[], None] = lambda: None,
        seconds: float = PROBE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._before = before
        self._seconds = seconds
        self._clock = clock
        self._asked: SimpleQueue[tuple[int, Sequence[str], float] | None] = SimpleQueue()
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="kv-store-look-up", daemon=True)
        self._thread.start()

    def submit(self, ticket: int, names: Sequence[str]) -> None:
        """Ask for the objects in order; those at the start of a prompt come first. Returns at once."""
        self._asked.put((ticket, names, self._clock()))

    def answers(self) -> list[Answer]:
        """Return the answers since the last call, one for each look-up that ended."""
        return [self._answers.get() for _ in range(self._answers.qsize())]

    def close(self) -> None:
        """End the thread after the look-up under way; one that hangs in a system call is left behind, as a daemon."""
        self._asked.put(None)
        self._thread.join(self._seconds)

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            ticket, names, since = asked
            try:
                self._before()
            except Exception:
                # The thread serves all requests: what is wrong with one of them must not end it.
                logger.exception("KVServing: the store was not told what its objects are for")
            began = self._clock()
            if began - since >= self._seconds:
                # Given up meanwhile: asking would keep the next ones waiting as well.
                self._answers.put(Answer(ticket, (), began, silent=False, answered=False))
                continue
            try:
                found = self._ask(names, began + self._seconds)
            except Exception:
                logger.exception("KVServing: a look-up in the store failed unexpectedly")
                found = [Reason.IO]
            silent, answered = judge(found, self._clock() - began, self._seconds)
            self._answers.put(Answer(ticket, tuple(found), began, silent, answered))

    def _ask(self, names: Sequence[str], deadline: float) -> list[bool | Reason]:
        found: list[bool | Reason] = []
        for first in range(0, len(names), _BATCH):
            batch = self._client.exists(names[first : first + _BATCH], deadline)
            found += batch
            if not any(answer is True for answer in batch):
                break
        return found


def judge(found: Sequence[bool | Reason], took: float, seconds: float) -> tuple[bool, bool]:
    """Return whether the store was silent, and whether it answered, when ``found`` took ``took`` of ``seconds``."""
    if Reason.TIMEOUT in found:
        # Sooner, it held nobody up; later, the look-up was given up already and the store may be back.
        return seconds / 4 <= took < 2 * seconds, False
    return False, took < seconds and (True in found or False in found)


def count(tally: Tally, found: Sequence[bool | Reason]) -> None:
    """Count what a look-up found, and what it did not by reason."""
    hits = sum(answer is True for answer in found)
    if hits:
        tally.count(Event.HIT, number=hits)
    for answer in found:
        if answer is not True:
            tally.count(Event.MISS, answer or Reason.ABSENT)
