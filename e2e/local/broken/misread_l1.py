"""The workers' own tier with one fault: for a part it loads another one of the same cache group.

For tests of tests: a comparison that this passes compares nothing. What it saves and stores is right.
"""

from __future__ import annotations

from kvserving_connector.core.chunk_hashes import split_part_key
from kvserving_connector.vllm.worker_cache import WorkerCacheConnector as Sound
from kvserving_connector.vllm.worker_cache.worker import WorkerHalf


class _Misreading(WorkerHalf):
    def readable(self, key: bytes) -> tuple[int, ...] | None:
        """Return the slots of the part that follows in order of keys; its own where there is no other."""
        group = split_part_key(key)[1]
        parts = sorted(other for other in self.pool.held() | {key} if split_part_key(other)[1] == group)
        return super().readable(parts[(parts.index(key) + 1) % len(parts)])


class WorkerCacheConnector(Sound):
    """Delivers KV of other tokens."""

    worker_class = _Misreading
