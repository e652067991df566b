"""Host memory of an engine: what a pod needs, and whether a limit holds it."""

from __future__ import annotations

from dataclasses import dataclass

from .amounts import GI, size
from .api.v1alpha1 import KVServingSpec, RoleName
from .connectors import BOUNCE_POOL_BYTES, MOONCAKE, roles_with_l1, roles_with_l2, staging_bytes, tier_children

SMALLEST_SHARD = 64 * 2**20
"""Bytes of a shard of Valkey, of which less is refused."""
BASELINE_BYTES = 8 * GI
RANK_BYTES = 3 * GI
CPU_ENGINE_BYTES = 5 * GI // 2
"""Resident memory of a CPU engine without KV cache and weights, measured."""
SHM_MARGIN_BYTES = 2 * GI
MOST_OF_DECODE = GI + 64 * 64
"""The largest pool for staging that a rank of decode makes: eight chunks of 128 MiB and 64 headers."""


@dataclass(frozen=True)
class HostMemory:
    """The parts, in bytes, that a container's memory limit must hold.

    ``baseline`` is the engine's own processes while they load a model: 8 GiB, and 3 GiB for
    each further rank. ``pool`` is the bounce pool of an L2 tier without L1, ``staging`` the pools of a CPU engine's
    ranks.
    """

    baseline: int
    l1: int
    pool: int
    staging: int = 0

    @property
    def margin(self) -> int:
        """10 % of L1: pinned allocations are rounded up."""
        return -(-self.l1 // 10)

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.baseline + self.l1 + self.pool + self.margin + self.staging

    @property
    def tiers(self) -> int:
        """What the tiers hold in ``/dev/shm``."""
        return self.l1 + self.pool

    @property
    def shm(self) -> int:
        """Least size of ``/dev/shm``: the tiers and 2 GiB for the engine's own segments."""
        return self.tiers + SHM_MARGIN_BYTES

    def explain(self) -> str:
        """The sum as a person reads it."""
        parts = [
            *((self.baseline, "engine"), (self.l1, "L1"), (self.margin, "10% of L1"), (self.pool, "L2 bounce pool")),
            (self.staging, "staging"),
        ]
        return " + ".join(f"{size(value)} {word}" for value, word in parts if value) + f" = {size(self.total)}"


def host_memory(spec: KVServingSpec, role: RoleName) -> HostMemory:
    """What one pod of ``role`` takes of its host's memory: an engine, or its share of one that spans nodes.

    L1 lies in ``/dev/shm`` whoever owns it. Staging is device memory, which is the host's for engines on a CPU alone.
    """
    l1 = spec.cache.l1
    l1_bytes = l1.size.bytes if l1 is not None and role in roles_with_l1(spec) else 0
    pooled = role in roles_with_l2(spec) and not l1_bytes and MOONCAKE not in tier_children(spec, role)
    return HostMemory(
        baseline=BASELINE_BYTES + RANK_BYTES * (ranks_per_pod(spec, role) - 1),
        l1=l1_bytes,
        pool=BOUNCE_POOL_BYTES if pooled else 0,
        staging=staging_pool(spec, role) * ranks_per_pod(spec, role) if spec.engine.device == "cpu" else 0,
    )


def staging_pool(spec: KVServingSpec, role: RoleName) -> int:
    """Bytes of the pool that each rank of ``role`` takes for staging; decode takes 1 GiB at most."""
    asked = staging_bytes(spec)
    return min(asked, MOST_OF_DECODE) if role == "decode" else asked


def ranks_per_pod(spec: KVServingSpec, role: RoleName) -> int:
    """Ranks of one pod of ``role``, which share its L1."""
    section = spec.prefill if role == "prefill" and spec.prefill is not None else spec.decode
    parallel = section.parallelism
    return max(1, parallel.tensor * parallel.pipeline * parallel.data // section.nodes)
