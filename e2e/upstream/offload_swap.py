"""Our copy engine under the constructor and the names that vLLM's tests of its own use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvserving_connector.vllm.host_worker import HostMemoryWorker


class HostWorkerUnderTest(HostMemoryWorker):
    """Takes the arguments of vLLM's ``CPUOffloadingWorker`` and shows what its test reads: tensors and open jobs."""

    def __init__(
        self,
        kv_caches: Any,
        blocks_per_chunk: int,
        num_cpu_chunks: int,
        mmap_region: Any = None,
        canonical_layout: bool = False,
    ) -> None:
        assert not canonical_layout
        pools: list[Any] = []
        if mmap_region is not None:
            make = mmap_region.create_next_worker_view

            def kept(size: int) -> Any:
                pools.append(make(size))
                return pools[-1]

            mmap_region.create_next_worker_view = kept
        super().__init__(kv_caches, blocks_per_chunk, num_cpu_chunks, mmap_region)
        import torch

        host = pools or [torch.from_numpy(pool) for pool in self._pool]
        device = [torch.from_numpy(cache) for cache in self._cache]
        groups = kv_caches.group_data_refs
        self._store_handler = SimpleNamespace(
            src_tensors=device, dst_tensors=host, layer_refs_per_group=groups, _transfers=_Open(self._stores)
        )
        self._load_handler = SimpleNamespace(
            src_tensors=host, dst_tensors=device, layer_refs_per_group=groups, _transfers=_Open(self._loads)
        )

    def shutdown(self) -> None:
        """Let go of the tensors shown here as well."""
        self._store_handler = self._load_handler = SimpleNamespace()
        super().shutdown()


class _Open:
    """The open jobs of one direction, as a sequence of objects with a ``job_id``."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane

    def __len__(self) -> int:
        return len(self._lane._jobs)

    def __getitem__(self, index: int) -> Any:
        return SimpleNamespace(job_id=self._lane._jobs[index][0])
