"""The copies between the engine's KV cache and one rank's L1: vLLM's on a GPU, ours on a CPU engine.

L1 of a rank is a region of its own: slots of one block each, in rows that the L2 tier reads and writes as a whole.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from kvserving_connector.core.tier_settings import refuse
from kvserving_connector.vllm import regions
from kvserving_connector.vllm.device_copies import hasten


class Copy(NamedTuple):
    """One block: the planner's group, the engine's block and the slot of L1."""

    group: int
    block_id: int
    slot: int


class _Canonical(OffloadingConnectorWorker):  # type: ignore[misc]
    """vLLM's way from named layers to pages of blocks, without its worker behind it."""

    canonical: CanonicalKVCaches

    def _init_worker(self, kv_caches: CanonicalKVCaches) -> None:
        self.canonical = kv_caches


def canonical(vllm_config: Any, kv_cache_config: Any, kv_caches: dict[str, Any]) -> CanonicalKVCaches:
    """Return the layers as vLLM's copies take them: int8 tensors of shape (blocks, page bytes), by cache group."""
    plain = SimpleNamespace(
        replicated_layout=False, config=SimpleNamespace(canonical_layout=False, parallel=SimpleNamespace(rank=0))
    )
    worker = _Canonical(plain, vllm_config, kv_cache_config)
    worker.register_kv_caches(kv_caches)
    return worker.canonical


class CopyEngine:
    """Copies of one rank, asynchronous and in order of submission per direction.

    ``cpu_bytes`` is this rank's share of L1. Raises ValueError when it holds no block.
    """

    def __init__(self, kv_caches: CanonicalKVCaches, cpu_bytes: int, name: str, device: str) -> None:
        page = SharedOffloadRegion.BLOCK_SIZE_ALIGNMENT
        block_bytes = sum(tensor.page_size_bytes for tensor in kv_caches.tensors)
        self.slot_bytes = -(-block_bytes // page) * page
        self.slots = cpu_bytes // self.slot_bytes
        if self.slots < 1:
            reason = f"a rank's share is {cpu_bytes} bytes and one block of this model's cache takes {self.slot_bytes}"
            raise refuse("cpu_bytes_to_use", cpu_bytes, reason, "set cache.l1.size to several times that")
        self._groups = len(kv_caches.group_data_refs)
        pod = os.environ.get("POD_NAME", "")
        # Nobody else maps the region, so its name can go at once and no end of the process leaves it behind. Until then
        # vLLM would share a region of one name with whoever has it: an engine of the same id that starts just now.
        region = SharedOffloadRegion(
            regions.named(f"{name}_{uuid.uuid4().hex}", pod),
            self.slots,
            0,
            self.slot_bytes,
            self.slot_bytes,
            barrier=lambda: None,
        )
        try:
            self.rows: npt.NDArray[np.uint8] = np.asarray(region.create_kv_memoryview()).view(np.uint8)
            self._worker = _worker(kv_caches, self.slots, region, device)
        except Exception:
            region.cleanup()
            raise

    def save(self, job: int, copies: Sequence[Copy]) -> None:
        """Start to copy blocks of the engine to slots. Everything submitted before on the device comes first."""
        self._require(self._worker.submit_store(job, *self._specs(copies)), job)

    def load(self, job: int, copies: Sequence[Copy]) -> None:
        """Start to copy slots to blocks of the engine."""
        device, host = self._specs(copies)
        self._require(self._worker.submit_load(job, host, device), job)

    def finished(self) -> list[TransferResult]:
        """Return the jobs that ended since the last call, each once."""
        results: list[TransferResult] = self._worker.get_finished()
        return results

    def close(self) -> None:
        """Finish what was submitted, then let go of the memory."""
        self.rows = np.empty((0, 0), np.uint8)
        self._worker.shutdown()

    def _specs(self, copies: Sequence[Copy]) -> tuple[GPULoadStoreSpec, CPULoadStoreSpec]:
        ordered = sorted(copies, key=lambda copy: copy.group)
        sizes = [0] * self._groups
        for copy in ordered:
            sizes[copy.group] += 1
        device = GPULoadStoreSpec(
            [copy.block_id for copy in ordered], group_sizes=sizes, block_indices=[0] * self._groups
        )
        return device, CPULoadStoreSpec([copy.slot for copy in ordered])

    @staticmethod
    def _require(submitted: bool, job: int) -> None:
        if not submitted:
            raise RuntimeError(f"the copies of job {job} were not taken by vLLM's offloading worker")


def _worker(kv_caches: CanonicalKVCaches, slots: int, region: SharedOffloadRegion, device: str) -> OffloadingWorker:
    if device == "cpu":
        from kvserving_connector.vllm.host_worker import HostMemoryWorker

        return HostMemoryWorker(kv_caches, 1, slots, region)
    from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker

    worker = CPUOffloadingWorker(kv_caches, 1, slots, region)
    hasten(worker)
    return worker
