"""Look-ups of the store tier: existence of many objects at once, in a thread of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager

from kvserving_connector.store import lookups
from kvserving_connector.store.client import StoreClient
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.tally import Tally

PROBE_SECONDS = lookups.PROBE_SECONDS
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
        silent, answered = lookups.judge(answers, time.monotonic() - asked, PROBE_SECONDS)
        if silent or answered:
            self._answers.put((asked, silent))
        lookups.count(self._tally, answers)
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
