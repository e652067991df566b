"""The copy engine of CPU engines against a model of what each byte must be."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from kvserving_connector.vllm.host_worker import HostMemoryWorker

pytestmark = pytest.mark.engine
BLOCKS = 40
CHUNKS = 24


def caches(pages: tuple[int, ...], groups: tuple[tuple[tuple[int, int], ...], ...], seed: int = 0) -> CanonicalKVCaches:
    """Tensors with these page sizes, and per group the (tensor, used bytes of the page) of each layer."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        CanonicalKVCacheTensor(
            torch.randint(-128, 128, (BLOCKS, page), dtype=torch.int8, generator=generator), page_size_bytes=page
        )
        for page in pages
    ]
    refs = [[CanonicalKVCacheRef(index, size) for index, size in group] for group in groups]
    return CanonicalKVCaches(tensors, refs)


# Attention alone; hybrid: two groups over the same tensors, one of which uses a part of each page, and a third group.
ATTENTION = ((64, 64), (((0, 64), (1, 64)),))
HYBRID = ((64, 96, 32), (((0, 64), (1, 96)), ((0, 48), (1, 80)), ((2, 32),)))


@pytest.fixture(params=[ATTENTION, HYBRID], ids=["attention", "hybrid"])
def shape(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def region_for() -> Iterator[Any]:
    made: list[SharedOffloadRegion] = []

    def make(pages: tuple[int, ...], per_chunk: int) -> SharedOffloadRegion:
        size = sum(pages) * per_chunk
        row = -(-size // SharedOffloadRegion.BLOCK_SIZE_ALIGNMENT) * SharedOffloadRegion.BLOCK_SIZE_ALIGNMENT
        made.append(SharedOffloadRegion(f"test-{uuid.uuid4().hex}", CHUNKS, 0, row, size))
        return made[-1]

    yield make
    for region in made:
        region.cleanup()
        assert not Path(region.mmap_path).exists()


def device(rng: random.Random, groups: int, per_chunk: int) -> tuple[GPULoadStoreSpec, CPULoadStoreSpec]:
    """Blocks of a request for each group, starting anywhere in a chunk; some groups may have none."""
    counts = [rng.choice((0, 1, 2, 5)) for _ in range(groups)]
    firsts = [rng.randrange(0, 7) for _ in range(groups)]
    blocks = rng.sample(range(BLOCKS), sum(counts))
    needed = [-(-(n + first % per_chunk) // per_chunk) if n else 0 for n, first in zip(counts, firsts, strict=True)]
    chunks = rng.sample(range(CHUNKS), sum(needed))
    return GPULoadStoreSpec(blocks, counts, firsts), CPULoadStoreSpec(chunks)


def collect(worker: HostMemoryWorker, jobs: set[int]) -> dict[int, Any]:
    """Wait for the jobs and return their results."""
    worker.wait(jobs)
    found = {result.job_id: result for result in worker.get_finished()}
    assert set(found) == jobs
    return found


@pytest.mark.parametrize("per_chunk", [1, 2, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_what_is_stored_comes_back_byte_for_byte_and_nothing_else_changes(
    shape: Any, per_chunk: int, shared: bool, region_for: Any
) -> None:
    pages, groups = shape
    for seed in range(20):
        rng = random.Random(seed)
        kv = caches(pages, groups, seed)
        region = region_for(pages, per_chunk) if shared else None
        worker = HostMemoryWorker(kv, per_chunk, CHUNKS, region)
        blocks, chunks = device(rng, len(groups), per_chunk)
        before = [tensor.tensor.clone() for tensor in kv.tensors]
        assert worker.submit_store(1, blocks, chunks)
        stored = collect(worker, {1})[1]
        assert stored.success
        for tensor in kv.tensors:
            tensor.tensor.fill_(77)
        assert worker.submit_load(2, chunks, blocks)
        loaded = collect(worker, {2})[2]
        expected = [torch.full_like(tensor, 77) for tensor in before]
        size, at = 0, 0
        for layers, count in zip(groups, blocks.group_sizes, strict=True):
            for block in blocks.block_ids[at : at + count]:
                for index, used in layers:
                    expected[index][block, :used] = before[index][block, :used]
                    size += used
            at += count
        for tensor, want in zip(kv.tensors, expected, strict=True):
            assert torch.equal(tensor.tensor, want)
        assert stored.transfer_size == loaded.transfer_size == size
        worker.shutdown()


def test_a_request_can_read_chunks_in_parts_that_another_one_stored_whole() -> None:
    """Chunks of three blocks, stored from block 0 on; a request with four blocks of its own needs the rest."""
    kv = caches(*ATTENTION)
    worker = HostMemoryWorker(kv, 3, CHUNKS)
    source = list(range(9))
    worker.submit_store(1, GPULoadStoreSpec(source, [9], [0]), CPULoadStoreSpec([7, 2, 11]))
    collect(worker, {1})
    target = [30, 20, 25, 10, 15]
    worker.submit_load(2, CPULoadStoreSpec([2, 11]), GPULoadStoreSpec(target, [5], [4]))
    collect(worker, {2})
    for tensor in kv.tensors:
        assert torch.equal(tensor.tensor[target], tensor.tensor[source[4:]])
    worker.shutdown()


def test_wait_returns_only_after_the_copy_so_that_blocks_can_be_reused() -> None:
    """What vLLM does at a preemption or when blocks are given to another request: flush, then write."""
    kv = caches(*ATTENTION)
    worker = HostMemoryWorker(kv, 1, CHUNKS)
    rng = random.Random(3)
    for job in range(0, 200, 2):
        blocks = rng.sample(range(BLOCKS), 20)
        chunks = CPULoadStoreSpec(rng.sample(range(CHUNKS), 20))
        before = [tensor.tensor[blocks].clone() for tensor in kv.tensors]
        worker.submit_store(job, GPULoadStoreSpec(blocks, [20], [0]), chunks)
        worker.wait({job})
        for tensor in kv.tensors:
            tensor.tensor[blocks] = 0
        worker.submit_load(job + 1, chunks, GPULoadStoreSpec(blocks, [20], [0]))
        worker.wait({job + 1, 10_000})
        for tensor, want in zip(kv.tensors, before, strict=True):
            assert torch.equal(tensor.tensor[blocks], want)
    assert len(worker.get_finished()) == 200
    assert worker.get_finished() == []
    worker.shutdown()


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Copies begin when the event is set."""
    gate = threading.Event()
    for name in ("_store", "_load"):
        original = getattr(HostMemoryWorker, name)

        def held(self: Any, *arguments: Any, original: Any = original) -> Any:
            assert gate.wait(30)
            return original(self, *arguments)

        monkeypatch.setattr(HostMemoryWorker, name, held)
    return gate


def test_submission_does_not_wait_for_copies_and_order_is_kept(gated: threading.Event) -> None:
    kv = caches(*ATTENTION)
    worker = HostMemoryWorker(kv, 1, CHUNKS)
    for job in range(4):
        worker.submit_store(job, GPULoadStoreSpec([job], [1], [0]), CPULoadStoreSpec([0]))
    assert worker.get_finished() == []
    gated.set()
    worker.wait({3})
    assert [result.job_id for result in worker.get_finished()] == [0, 1, 2, 3]
    worker.submit_load(9, CPULoadStoreSpec([0]), GPULoadStoreSpec([20], [1], [0]))
    collect(worker, {9})
    # The last store into the chunk won.
    assert torch.equal(kv.tensors[0].tensor[20], kv.tensors[0].tensor[3])
    worker.shutdown()


def test_shutdown_lets_copies_end_before_the_mapping_is_closed(gated: threading.Event, region_for: Any) -> None:
    kv = caches(*ATTENTION)
    region = region_for((64, 64), 1)
    worker = HostMemoryWorker(kv, 1, CHUNKS, region)
    worker.submit_store(1, GPULoadStoreSpec([5], [1], [0]), CPULoadStoreSpec([0]))
    closing = threading.Thread(target=worker.shutdown)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive(), "the mapping was closed under a copy"
    assert region.mmap_obj is not None
    gated.set()
    closing.join(30)
    assert not closing.is_alive()
    assert region.mmap_obj is None
    worker.shutdown()


def test_the_scheduler_s_tiers_see_the_bytes_of_a_chunk_in_one_row(region_for: Any) -> None:
    pages, groups = ATTENTION
    kv = caches(pages, groups)
    region = region_for(pages, 2)
    view = region.create_kv_memoryview()
    worker = HostMemoryWorker(kv, 2, CHUNKS, region)
    worker.submit_store(1, GPULoadStoreSpec([5, 6], [2], [0]), CPULoadStoreSpec([4]))
    collect(worker, {1})
    length = view.shape[1] if view.shape else 0
    row = view.tobytes()[4 * length : 4 * length + sum(pages) * 2]
    first, second = (tensor.tensor for tensor in kv.tensors)
    assert row == b"".join(part.numpy().tobytes() for part in (first[5], first[6], second[5], second[6]))
    view.release()
    worker.shutdown()


@pytest.mark.parametrize(
    ("blocks", "chunks", "words"),
    [
        (GPULoadStoreSpec([1, 2], [2], [0]), CPULoadStoreSpec([0]), "need 2 chunks, the transfer has 1"),
        (GPULoadStoreSpec([1], [1], [0]), CPULoadStoreSpec([0, 1]), "need 1 chunks, the transfer has 2"),
        (GPULoadStoreSpec([1, 2], [1, 1], [0, 0]), CPULoadStoreSpec([0, 1]), "2 KV groups, registered were 1"),
    ],
)
def test_a_transfer_that_does_not_fit_is_refused_before_anything_is_copied(
    blocks: Any, chunks: Any, words: str
) -> None:
    kv = caches(*ATTENTION)
    before = [tensor.tensor.clone() for tensor in kv.tensors]
    worker = HostMemoryWorker(kv, 1, CHUNKS)
    with pytest.raises(ValueError, match=words):
        worker.submit_load(1, chunks, blocks)
    assert worker.get_finished() == []
    assert all(torch.equal(tensor.tensor, want) for tensor, want in zip(kv.tensors, before, strict=True))
    worker.shutdown()


def test_a_defect_in_a_copy_ends_the_engine_instead_of_passing_as_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, job_id: int, pages: Any) -> Any:
        raise RuntimeError("no such memory")

    monkeypatch.setattr(HostMemoryWorker, "_load", broken)
    worker = HostMemoryWorker(caches(*ATTENTION), 1, CHUNKS)
    worker.submit_load(1, CPULoadStoreSpec([0]), GPULoadStoreSpec([1], [1], [0]))
    with pytest.raises(RuntimeError, match="no such memory"):
        worker.wait({1})
    with pytest.raises(RuntimeError, match="no such memory"):
        worker.get_finished()
    worker.shutdown()
