"""What ranks are asked by ``collective_rpc``: functions that run in their processes, given vLLM's worker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

_NUMBER_BYTES = 4


@dataclass(frozen=True)
class Held:
    """One rank's L1: the parts that can be loaded, its slots in all, those in use, and the process."""

    keys: frozenset[bytes]
    capacity: int
    used: int
    pid: int


def held(worker: Any) -> Held:
    """Return what the rank holds. Raises AssertionError when its index is broken."""
    pool = half().pool
    pool.check()
    return Held(pool.held(), pool.capacity, pool.used, os.getpid())


def spoil(worker: Any) -> None:
    """Move all numbers in the rank's L1 on by one, so that each token's KV is another's in part."""
    rows = half()._copies.rows
    rows[:] = np.roll(rows, _NUMBER_BYTES, axis=1)


def fail(worker: Any, rank: int, share: float) -> None:
    """Have a rank of ``faulty`` find so many of the parts that it is to load gone."""
    found = half()
    found.share = share if found.rank == rank else 0.0


def half() -> Any:
    """Return the connector's ``WorkerHalf`` in this process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()._worker
