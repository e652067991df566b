"""The workers' own tier with one fault: it loads the slot beside the one that was asked for.

For one test: a comparison that this passes compares nothing. What it saves and stores is right.
"""

from __future__ import annotations

from kvserving_connector.vllm.worker_cache import WorkerCacheConnector as Sound
from kvserving_connector.vllm.worker_cache.worker import WorkerHalf


class _Misreading(WorkerHalf):
    def readable(self, key: bytes) -> tuple[int, ...] | None:
        """Return the neighbours of the part's slots."""
        slots = super().readable(key)
        return slots and tuple((slot + 1) % self.pool.capacity for slot in slots)


class WorkerCacheConnector(Sound):
    """Delivers KV of other tokens."""

    worker_class = _Misreading
