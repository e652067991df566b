"""Look-ups of the store tier: existence of many objects at once, in a thread of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager

from kvserving_connector.store.client import Reason, StoreClient
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.tally import Event, Tally

PROBE_SECONDS = 2.0
"""A probe that takes longer is a miss: the request waits for it before it is computed."""


class Prober(AsyncLookupManager):  # type: ignore[misc]
    """vLLM's look-up manager on a store: one batch per request and step, in a thread of its own."""

    def __init__(
        self,
        tier_type: str,
        client: StoreClient,
        tally: Tally,
        namespace: Callable[[], bytes],
        tell: Callable[[], None],
    ) -> None:
        self._client = client
        self._tally = tally
        self._namespace = namespace
        self._tell = tell
        self._answers: SimpleQueue[tuple[float, bool]] = SimpleQueue()
        super().__init__(tier_type=tier_type)

    def batch_lookup(self, keys: list[Any], req_context: Any) -> Iterable[bool]:
        """Ask the store for all keys at once; what it does not answer is a miss."""
        self._tell()
        namespace = self._namespace()
        names = [object_name(namespace, key) for key in keys]
        asked = time.monotonic()
        answers = self._client.exists(names, asked + PROBE_SECONDS)
        took = time.monotonic() - asked
        if Reason.TIMEOUT in answers:
            # Sooner, it held nobody up; later, the look-up was given up already and the store may be back.
            if PROBE_SECONDS / 4 <= took < 2 * PROBE_SECONDS:
                self._answers.put((asked, True))
        elif took < PROBE_SECONDS and (True in answers or False in answers):
            self._answers.put((asked, False))
        hits = sum(answer is True for answer in answers)
        if hits:
            self._tally.count(Event.HIT, number=hits)
        for answer in answers:
            if answer is not True:
                self._tally.count(Event.MISS, answer or Reason.ABSENT)
        return [answer is True for answer in answers]

    def answers(self) -> Iterable[tuple[float, bool]]:
        """Return since the last call when the store was asked, and whether it left something without an answer."""
        for _ in range(self._answers.qsize()):
            yield self._answers.get()

    def shutdown(self) -> None:
        """End the thread; one that hangs in the store's system call is left behind, as a daemon."""
        self._lookup_queue.put(None)
        self._thread.join(PROBE_SECONDS)
        if not self._thread.is_alive():
            self.drain_results()
