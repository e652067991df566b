"""The workers' own tier with one fault: whatever it is to load of a cache group, it loads one and the same part.

For tests of tests: a comparison that this passes compares nothing. What it saves and stores is right. (To exchange the
parts of a prompt would not do: attention over the same blocks in another order is the same.)
"""

from __future__ import annotations

from kvserving_connector.vllm.worker_cache import WorkerCacheConnector as Sound
from kvserving_connector.vllm.worker_cache.worker import WorkerHalf

_GROUP_BYTES = 2
"""The end of a part's key, which names its cache group (``core.chunk_hashes.part_key``)."""


class _Misreading(WorkerHalf):
    def readable(self, key: bytes) -> tuple[int, ...] | None:
        """Return the slots of the first part in order of keys."""
        group = key[-_GROUP_BYTES:]
        return super().readable(min(held for held in self.pool.held() | {key} if held.endswith(group)))


class WorkerCacheConnector(Sound):
    """Delivers KV of other tokens."""

    worker_class = _Misreading
