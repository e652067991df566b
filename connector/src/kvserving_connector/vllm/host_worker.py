"""The copy engine of the tiers on CPU engines: vLLM's own one needs a GPU and refuses this platform.

The "device" is host memory there, so a transfer is a copy from memory to memory. Stores, loads and the loads that a
step waits for have a thread each, which copies in order of submission, as vLLM's streams do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

MODULE = __name__


class _Page(NamedTuple):
    """One page of one layer: where it lies in the engine's cache and in the pool."""

    tensor: int
    block: int
    chunk: int
    offset: int
    size: int


class _Lane:
    """Copies in a thread, one job after the other."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"kvserving-{name}")
        self._jobs: deque[tuple[int, Future[TransferResult]]] = deque()

    def submit(self, job_id: int, future: Any, *arguments: Any) -> None:
        self._jobs.append((job_id, self._thread.submit(future, job_id, *arguments)))

    def finished(self) -> list[TransferResult]:
        results = []
        while self._jobs and self._jobs[0][1].done():
            results.append(self._jobs.popleft()[1].result())
        return results

    def wait(self, job_ids: set[int]) -> None:
        for job_id, future in self._jobs:
            if job_id in job_ids:
                future.result()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._jobs.clear()


class HostMemoryWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies pages between the KV cache of a CPU engine and the pool of L1, with the interface of vLLM's GPU worker.

    ``kv_caches`` are vLLM's canonical tensors, int8 of shape (blocks, page bytes), with one list of references per KV
    group; groups may share a tensor. A chunk of the pool holds ``blocks_per_chunk`` pages of every tensor. ``region``
    is the mapping shared with the scheduler, owned from here on; without one the pool is private memory of
    ``num_chunks`` chunks.

    A transfer reads and writes nothing after ``wait`` for it has returned, nor after ``shutdown``. A copy cannot fail
    but for a defect: its exception is raised in ``get_finished`` and ``wait``, because vLLM knows no failed transfer
    between device and host.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        num_chunks: int,
        region: SharedOffloadRegion | None = None,
    ) -> None:
        self._region = region
        self._blocks_per_chunk = blocks_per_chunk
        self._groups = kv_caches.group_data_refs
        self._page_sizes = [tensor.page_size_bytes for tensor in kv_caches.tensors]
        # NumPy copies with one thread and without the interpreter's lock; torch would start a second team of threads
        # on the cores that the model computes on.
        self._cache: list[Any] = []
        self._pool: list[Any] = []
        for tensor, page in zip(kv_caches.tensors, self._page_sizes, strict=True):
            self._cache.append(tensor.tensor.view(torch.int8).view(-1, page).numpy())
            size = page * blocks_per_chunk
            if region is not None:
                pool = region.create_next_worker_view(size)
            else:
                pool = torch.zeros((num_chunks, size), dtype=torch.int8)
            self._pool.append(pool.numpy())
        self._stores = _Lane("store")
        self._loads = _Lane("load")
        self._expedited = _Lane("expedited")
        self._lanes = (self._stores, self._loads, self._expedited)

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Copy blocks of the engine's cache to chunks of the pool; returns True at once."""
        self._stores.submit(job_id, self._store, self._pages(src_spec, dst_spec))
        return True

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        """Copy chunks of the pool to blocks of the engine's cache; returns True at once.

        ``expedited`` (vLLM 0.33): the step waits for it, so it does not queue behind other loads.
        """
        lane = self._expedited if expedited else self._loads
        lane.submit(job_id, self._load, self._pages(dst_spec, src_spec))
        return True

    def get_finished(self) -> list[TransferResult]:
        """Return the transfers that ended since the last call, each once."""
        return [result for lane in self._lanes for result in lane.finished()]

    def wait(self, job_ids: set[int]) -> None:
        """Return when none of the jobs is under way; unknown jobs are none."""
        for lane in self._lanes:
            lane.wait(job_ids)

    def shutdown(self) -> None:
        """Finish what was submitted, then let go of the memory. Idempotent."""
        for lane in self._lanes:
            lane.close()
        # The mapping can only be closed when nothing refers to it.
        self._cache.clear()
        self._pool.clear()
        if self._region is not None:
            self._region.cleanup()
            self._region = None

    def _pages(self, device: GPULoadStoreSpec, host: LoadStoreSpec) -> list[_Page]:
        """Pair the blocks of each group with their places in the chunks of the same group."""
        blocks: Sequence[int] = device.block_ids.tolist()
        chunks: Sequence[int] = host.block_ids.tolist()
        if len(device.group_sizes) != len(self._groups):
            raise ValueError(f"a transfer of {len(device.group_sizes)} KV groups, registered were {len(self._groups)}")
        per_chunk = self._blocks_per_chunk
        needed = [
            -(-(first % per_chunk + count) // per_chunk) if count else 0
            for count, first in zip(device.group_sizes, device.block_indices, strict=True)
        ]
        if sum(device.group_sizes) != len(blocks) or sum(needed) != len(chunks):
            raise ValueError(f"{len(blocks)} blocks need {sum(needed)} chunks, the transfer has {len(chunks)}")
        pages: list[_Page] = []
        block_at = chunk_at = 0
        for references, count, first, chunk_count in zip(
            self._groups, device.group_sizes, device.block_indices, needed, strict=True
        ):
            # The first block of the group may lie inside a chunk.
            skip = first % per_chunk
            for position in range(skip, skip + count):
                block = blocks[block_at + position - skip]
                chunk = chunks[chunk_at + position // per_chunk]
                pages += [
                    _Page(
                        tensor=reference.tensor_idx,
                        block=block,
                        chunk=chunk,
                        offset=position % per_chunk * self._page_sizes[reference.tensor_idx],
                        size=reference.page_size_bytes,
                    )
                    for reference in references
                ]
            block_at += count
            chunk_at += chunk_count
        return pages

    def _store(self, job_id: int, pages: list[_Page]) -> TransferResult:
        started = time.perf_counter()
        for page in pages:
            end = page.offset + page.size
            self._pool[page.tensor][page.chunk, page.offset : end] = self._cache[page.tensor][page.block, : page.size]
        return _result(job_id, pages, started)

    def _load(self, job_id: int, pages: list[_Page]) -> TransferResult:
        started = time.perf_counter()
        for page in pages:
            end = page.offset + page.size
            self._cache[page.tensor][page.block, : page.size] = self._pool[page.tensor][page.chunk, page.offset : end]
        return _result(job_id, pages, started)


class _OnHost:
    """What both specs of vLLM need on a CPU engine: our worker instead of the refusal."""

    _worker: Any
    blocks_per_chunk: int

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return the worker of this process, made at the first call."""
        if self._worker is None:
            self._worker = self.create_worker(kv_caches)
        return self._worker

    def create_worker(self, kv_caches: CanonicalKVCaches) -> HostMemoryWorker:
        """Return a new worker for ``kv_caches``; the mapping is given up again when that fails."""
        region = self._region()
        try:
            return HostMemoryWorker(kv_caches, self.blocks_per_chunk, self._chunks(), region)
        except Exception:
            if region is not None:
                region.cleanup()
            raise

    def _region(self) -> SharedOffloadRegion | None:
        return None

    def _chunks(self) -> int:
        # Named in blocks up to vLLM 0.29.
        return int(self.num_chunks if hasattr(self, "num_chunks") else self.num_blocks)  # type: ignore[attr-defined]


class HostCPUSpec(_OnHost, CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's CPU spec on a CPU engine: L1 in private memory of each worker."""


class HostTieringSpec(_OnHost, TieringOffloadingSpec):  # type: ignore[misc]
    """vLLM's tiering spec on a CPU engine: L1 in the mapping that the scheduler's tiers read and write."""

    def _region(self) -> SharedOffloadRegion:
        rank = 0 if self.replicated_layout else self.config.parallel.rank
        # By position, because the names of two arguments changed with vLLM 0.30.
        return SharedOffloadRegion(
            self._engine_id, self._chunks(), rank, self.kv_bytes_per_chunk, self.cpu_page_size_per_worker
        )


SPECS = {"CPUOffloadingSpec": HostCPUSpec.__name__, "TieringOffloadingSpec": HostTieringSpec.__name__}


def _result(job_id: int, pages: list[_Page], started: float) -> TransferResult:
    size = sum(page.size for page in pages)
    return TransferResult(job_id, True, size, time.perf_counter() - started)
