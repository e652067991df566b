"""What a namespace is for, told to people beside its objects.

Written again from time to time: a store evicts it like any object, and a purge removes it with its namespace.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable

from kvserving_connector.store.client import StoreClient, StoreFault
from kvserving_connector.store.inventory import about_key
from kvserving_connector.store.namespace import Namespace

AGAIN_SECONDS = 60.0
REFUSED_SECONDS = 5.0
"""As that, after the store did not take it: one that is full has room now and then."""
_WRITE_SECONDS = 2.0

logger = logging.getLogger("vllm.kvserving")


class Announcement:
    """Writes the facts of a namespace to its store. Thread-safe; for threads that wait for the store anyway."""

    def __init__(
        self, client: StoreClient, namespace: Callable[[], Namespace], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._lock = threading.Lock()
        self._again = float("-inf")

    def tell(self) -> None:
        """Write the facts unless that was done within ``AGAIN_SECONDS``, or refused within ``REFUSED_SECONDS``.

        Raises nothing.
        """
        with self._lock:
            if self._clock() < self._again:
                return
            self._again = self._clock() + AGAIN_SECONDS
        namespace = self._namespace()
        text = json.dumps(namespace.facts(), sort_keys=True).encode()
        try:
            self._client.put(about_key(namespace.digest()), (text,), time.monotonic() + _WRITE_SECONDS)
        except StoreFault as fault:
            logger.info("KVServing: the store was not told what its namespace is for: %s", fault)
            with self._lock:
                self._again = self._clock() + REFUSED_SECONDS
