"""vLLM's copies to a device, handed on in batches, and what a step waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm import _custom_ops, platforms
from vllm.v1.kv_offload.base import CanonicalKVCacheRef
from vllm.v1.kv_offload.cpu.gpu_worker import SingleDirectionOffloadingHandler

from kvserving_connector.vllm.device_copies import StepWorker, hasten, in_batches, together

pytestmark = pytest.mark.engine


class Inner:
    """vLLM's worker as far as it is asked; the event of a load is its number."""

    def __init__(self, expedites: bool = True) -> None:
        self.waited: list[set[int]] = []
        if expedites:
            self._expedited_load_handler = SimpleNamespace(_transfer_events={})

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        if expedited and hasattr(self, "_expedited_load_handler"):
            self._expedited_load_handler._transfer_events[job_id] = f"event {job_id}"
        return True

    def wait(self, job_ids: set[int]) -> None:
        self.waited.append(job_ids)


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the current stream was told to wait for."""
    found: list[Any] = []
    stream = SimpleNamespace(wait_event=found.append)
    monkeypatch.setattr(platforms.current_platform, "current_stream", lambda: stream, raising=False)
    return found


def test_every_batch_of_a_transfer_is_copied_with_its_own_addresses_and_sizes() -> None:
    memory = torch.zeros(2, 3000, dtype=torch.int64)
    memory[0] = torch.arange(3000)
    calls = []

    def copy(source: Any, target: Any, sizes: Any, is_src_access_order_any: bool = False) -> None:
        assert is_src_access_order_any
        calls.append(len(sizes))
        memory[1][target] = memory[0][source] * sizes

    order = torch.randperm(3000)
    in_batches(copy)(order, order, torch.full((3000,), 2), is_src_access_order_any=True)
    assert torch.equal(memory[1], 2 * memory[0])
    assert calls == [128, 256, 512, 1024, 1024, 56]


def test_only_copies_by_the_driver_are_handed_on_in_batches() -> None:
    def kernel() -> None:
        pass

    worker = SimpleNamespace(
        _store_handler=SimpleNamespace(_swap_blocks_batch=_custom_ops.swap_blocks_batch),
        _load_handler=SimpleNamespace(_swap_blocks_batch=kernel),
    )
    hasten(worker)
    assert worker._store_handler._swap_blocks_batch.__wrapped__ is _custom_ops.swap_blocks_batch
    assert worker._load_handler._swap_blocks_batch is kernel
    hasten(SimpleNamespace())


def direction(layers: int, per_chunk: int, to_host: bool, odd: bool) -> Any:
    """One of vLLM's, L1 in rows of all layers, and a cache of layers; ``odd``: the last one's pages are smaller."""
    sizes = [64] * (layers - 1) + [32 if odd else 64]
    host = torch.zeros((40, sum(sizes) * per_chunk), dtype=torch.int8)
    ends = [sum(sizes[: number + 1]) * per_chunk for number in range(layers)]
    rows = [host[:, end - size * per_chunk : end] for end, size in zip(ends, sizes, strict=True)]
    cache = [torch.zeros((160, size), dtype=torch.int8) for size in sizes]
    made: Any = SingleDirectionOffloadingHandler.__new__(SingleDirectionOffloadingHandler)
    made.layer_refs_per_group = [[CanonicalKVCacheRef(number, size) for number, size in enumerate(sizes)]]
    made.src_tensors, made.dst_tensors = (cache, rows) if to_host else (rows, cache)
    made.src_blocks_per_chunk, made.dst_blocks_per_chunk = (1, per_chunk) if to_host else (per_chunk, 1)
    made._fill_group_ops, made._canonical_copy_plans = made._fill_direct_ops, None
    return made


@given(
    layers=st.integers(1, 5),
    per_chunk=st.integers(1, 4),
    size=st.integers(1, 20),
    skip=st.integers(0, 3),
    before=st.integers(0, 7),
    to_host=st.booleans(),
    odd=st.booleans(),
    chance=st.randoms(use_true_random=False),
)
def test_addresses_are_those_that_vllm_works_out_layer_by_layer(
    layers: int, per_chunk: int, size: int, skip: int, before: int, to_host: bool, odd: bool, chance: Any
) -> None:
    skip %= per_chunk
    chunks = np.array(chance.sample(range(40), -(-(size + skip) // per_chunk)))
    blocks = np.array(chance.sample(range(160), size))
    handler = direction(layers, per_chunk, to_host, odd)
    found = []
    for fill in (handler._fill_direct_ops, together(handler)):
        arrays = [np.full(before + layers * size, -1, dtype=np.int64) for _ in range(3)]
        ended = fill(
            0,
            group_src=blocks if to_host else chunks,
            group_dst=chunks if to_host else blocks,
            group_size=size,
            src_skip_count=0 if to_host else skip,
            dst_skip_count=skip if to_host else 0,
            all_src=arrays[0],
            all_dst=arrays[1],
            all_sizes=arrays[2],
            op_idx=before,
        )
        found.append((ended, [list(array) for array in arrays]))
    assert found[0] == found[1]


def test_the_addresses_of_every_direction_are_worked_out_together_but_for_the_layout_that_ranks_share() -> None:
    worker = SimpleNamespace(_store_handler=direction(3, 1, True, False), _load_handler=direction(3, 1, False, False))
    worker._load_handler._canonical_copy_plans = [[]]
    worker._store_handler._swap_blocks_batch = worker._load_handler._swap_blocks_batch = None
    hasten(worker)
    assert worker._store_handler._fill_group_ops.__wrapped__.__name__ == "_fill_direct_ops"
    assert not hasattr(worker._load_handler._fill_group_ops, "__wrapped__")


def test_a_step_orders_its_own_loads_on_the_device_and_every_later_wait_is_one_of_the_host(ordered: list[Any]) -> None:
    inner = Inner()
    worker = StepWorker(inner)
    worker.submit_load(1, None, None)
    worker.submit_load(2, None, None, expedited=True)
    worker.wait({2})
    assert (ordered, inner.waited) == (["event 2"], [])
    worker.wait({1, 2})
    assert (ordered, inner.waited) == (["event 2"], [{1, 2}])


def test_a_load_whose_end_is_not_known_is_waited_for_by_the_host(ordered: list[Any]) -> None:
    inner = Inner(expedites=False)
    worker = StepWorker(inner)
    worker.submit_load(2, None, None, expedited=True)
    worker.wait({2})
    assert (ordered, inner.waited) == ([], [{2}])
