"""``WorkerCacheConnector`` as it should not be: ranks with unequal tiers, and parts that cannot be loaded."""

from __future__ import annotations

import random
from typing import Any

from kvserving_connector.vllm.worker_cache import WorkerCacheConnector as Sound
from kvserving_connector.vllm.worker_cache.worker import WorkerHalf


class FaultyHalf(WorkerHalf):
    """Every rank but the first has half an L1. ``share`` of the parts that are to be loaded cannot be."""

    share = 0.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._random = random.Random(self.rank)

    def l1_bytes(self) -> int:
        """Return the whole share of the first rank, half of it for others."""
        whole = super().l1_bytes()
        return whole // 2 if self.rank else whole

    def readable(self, key: bytes) -> tuple[int, ...] | None:
        """Return None for the share that fails."""
        return None if self._random.random() < self.share else super().readable(key)


class WorkerCacheConnector(Sound):
    """The connector with such workers."""

    worker_class = FaultyHalf
