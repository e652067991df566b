"""vLLM's copies between L1 and a device, begun at once, and waited for by the device where a step needs them.

vLLM hands the driver all pages of a transfer at once, of which the driver copies nothing until it has looked at most of
them: a load of 8,000 tokens takes a third longer than the link does (adr/0021). Before that it works out the addresses
layer by layer, and behind it the host waits for a load within a step before it launches the step's kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult

from kvserving_connector.core.batches import batches

_HANDLERS = ("_store_handler", "_load_handler", "_expedited_load_handler")


def in_batches(swap: Callable[..., Any]) -> Callable[..., None]:
    """Return vLLM's ``swap_blocks_batch``, handing its pages on in batches, on the same stream."""

    @wraps(swap)
    def copied(source: Any, target: Any, sizes: Any, **more: Any) -> None:
        for batch in batches(len(sizes)):
            swap(source[batch], target[batch], sizes[batch], **more)

    return copied


def together(handler: Any) -> Callable[..., tuple[int, int]]:
    """Return ``_fill_group_ops`` of a direction of vLLM's worker, which writes down the addresses of a group's pages.

    vLLM works out those of a group's first layer, and those of the others are as far from them as the layers are.
    Layers that differ by more than where they begin are left to vLLM.
    """
    by_vllm: Callable[..., tuple[int, int]] = handler._fill_group_ops
    first = copy.copy(handler)
    first.layer_refs_per_group = [refs[:1] for refs in handler.layer_refs_per_group]
    distances = [
        (_distances(handler.src_tensors, refs), _distances(handler.dst_tensors, refs))
        for refs in handler.layer_refs_per_group
    ]

    @wraps(by_vllm)
    def filled(
        g_idx: int, *, group_size: int, all_src: Any, all_dst: Any, all_sizes: Any, op_idx: int, **more: Any
    ) -> tuple[int, int]:
        arrays = {"all_src": all_src, "all_dst": all_dst, "all_sizes": all_sizes}
        source, target = distances[g_idx]
        if source is None or target is None:
            return by_vllm(g_idx, group_size=group_size, op_idx=op_idx, **arrays, **more)
        end, size = first._fill_direct_ops(g_idx, group_size=group_size, op_idx=op_idx, **arrays, **more)
        layers = len(source)
        last = op_idx + layers * group_size
        for addresses, away in ((all_src, source), (all_dst, target)):
            known = addresses.view(np.int64)
            known[op_idx:last].reshape(layers, group_size)[:] = known[op_idx:end] + away[:, None]
        all_sizes[op_idx:last] = all_sizes[op_idx]
        return last, layers * size

    return filled


def _distances(tensors: Any, refs: Any) -> Any:
    """Return how many bytes each layer begins behind the first one; None where they differ in anything else."""
    found = [tensors[ref.tensor_idx] for ref in refs]
    forms = {(one.stride(0), one.shape[1], ref.page_size_bytes) for one, ref in zip(found, refs, strict=True)}
    if len(forms) != 1:
        return None
    return np.array([tensor.data_ptr() - found[0].data_ptr() for tensor in found], dtype=np.int64)


def hasten(worker: OffloadingWorker) -> None:
    """Let each direction of vLLM's worker begin at once; another worker is left as it is."""
    from vllm import _custom_ops

    by_the_driver: Any = _custom_ops.swap_blocks_batch
    for name in _HANDLERS:
        handler: Any = getattr(worker, name, None)
        # In the layout that all ranks share, a page of L1 is more than one of a layer's.
        if hasattr(handler, "_fill_group_ops") and handler._canonical_copy_plans is None:
            handler._fill_group_ops = together(handler)
        # Where pages are small vLLM has a kernel copy them, which needs no batches.
        copies_by_driver = getattr(handler, "_swap_blocks_batch", None) is by_the_driver
        if copies_by_driver:
            handler._swap_blocks_batch = in_batches(by_the_driver)


class StepWorker(OffloadingWorker):  # type: ignore[misc]
    """vLLM's worker, with which a step's own loads are waited for on the device.

    The first ``wait`` for a load that was submitted with ``expedited`` returns at once: what the current stream is
    given from then on runs after the load. Every other ``wait`` returns when the transfer is over, as vLLM's.
    """

    def __init__(self, inner: OffloadingWorker) -> None:
        self._inner = inner
        self._fresh: set[int] = set()

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """As vLLM."""
        return bool(self._inner.submit_store(job_id, src_spec, dst_spec))

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        """As vLLM; remembers a load that the step waits for."""
        if not expedited:
            return bool(self._inner.submit_load(job_id, src_spec, dst_spec))
        self._fresh.add(job_id)
        return bool(self._inner.submit_load(job_id, src_spec, dst_spec, expedited=True))

    def get_finished(self) -> list[TransferResult]:
        """As vLLM."""
        results: list[TransferResult] = self._inner.get_finished()
        return results

    def wait(self, job_ids: set[int]) -> None:
        """Return when the transfers are over, or the device will wait for them."""
        fresh = job_ids & self._fresh
        self._fresh -= fresh
        ordered = {job_id for job_id in fresh if self._ordered_on_device(job_id)}
        if others := job_ids - ordered:
            self._inner.wait(others)

    def shutdown(self) -> None:
        """As vLLM."""
        self._inner.shutdown()

    def _ordered_on_device(self, job_id: int) -> bool:
        from vllm.platforms import current_platform

        handler = getattr(self._inner, "_expedited_load_handler", None)
        event = getattr(handler, "_transfer_events", {}).get(job_id)
        if event is None:
            return False
        current_platform.current_stream().wait_event(event)
        return True
