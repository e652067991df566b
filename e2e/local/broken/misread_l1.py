"""The workers' own tier with one fault: whatever it is to load of a cache group, it loads one and the same part.

For tests of tests: a comparison that this passes compares nothing. What it saves and stores is right. (To exchange the
parts of a prompt would not do: attention over the same blocks in another order is the same.)
"""

from __future__ import annotations

from kvserving_connector.core.chunk_hashes import split_part_key
from kvserving_connector.vllm.worker_cache import WorkerCacheConnector as Sound
from kvserving_connector.vllm.worker_cache.worker import WorkerHalf


class _Misreading(WorkerHalf):
    def readable(self, key: bytes) -> tuple[int, ...] | None:
        """Return the slots of the first part in order of keys."""
        group = split_part_key(key)[1]
        return super().readable(min(held for held in self.pool.held() | {key} if split_part_key(held)[1] == group))


class WorkerCacheConnector(Sound):
    """Delivers KV of other tokens."""

    worker_class = _Misreading
