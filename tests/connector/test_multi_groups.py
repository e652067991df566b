"""External tokens for models with several cache groups: no block of another group's local hit may be handed out.

The regression cases of vLLM's two-phase allocation, with prefix hits that vLLM's own cache finds.
"""

from __future__ import annotations

from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.multi_support import BLOCK  # noqa: E402

from kvserving_connector import compat  # noqa: E402

pytestmark = pytest.mark.engine
HIT, EXTERNAL = 5, 3
MOST = 10_000


def manager(groups: int) -> Any:
    """A cache of one group with full attention and others with a sliding window, with room for two requests."""
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

    shape = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs = [FullAttentionSpec(**shape), *[SlidingWindowSpec(sliding_window=100 * BLOCK, **shape)] * (groups - 1)]
    config = KVCacheConfig(
        num_blocks=1 + 2 * groups * (HIT + EXTERNAL),
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs)],
    )
    return KVCacheManager(
        config, max_model_len=MOST, scheduler_block_size=BLOCK, hash_block_size=BLOCK, enable_caching=True
    )


def request(name: str, blocks: int, token: int) -> Any:
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(name, [token] * (blocks * BLOCK), SamplingParams(max_tokens=1), None, block_hasher=hasher)


def leave_a_prefix_at_the_head_of_the_free_queue(cache: Any) -> None:
    """Cache ``HIT`` blocks in every group and free them, so that they are the next blocks to be evicted."""
    old, other = request("old", HIT, 1), request("other", HIT + EXTERNAL, 2)
    for one in (old, other):
        assert cache.allocate_slots(one, one.num_tokens) is not None
        one.num_computed_tokens = one.num_tokens
    cache.free(old)
    fill = request("fill", 1, 3)
    while cache.block_pool.get_num_free_blocks() > HIT * len(cache.kv_cache_config.kv_cache_groups):
        fill = request(f"fill{cache.block_pool.get_num_free_blocks()}", 1, 3)
        assert cache.allocate_slots(fill, BLOCK) is not None
    cache.free(other)


def load(cache: Any, one: Any) -> list[int]:
    """Allocate the request for an asynchronous load after a local hit; return the ids of all its blocks."""
    hits, count, *_ = cache.get_computed_blocks(one)
    assert count == HIT * BLOCK
    assert all(len(group) == HIT for group in hits.blocks)
    allocated = cache.allocate_slots(
        one,
        0,
        num_new_computed_tokens=count,
        new_computed_blocks=hits,
        num_external_computed_tokens=EXTERNAL * BLOCK,
        delay_cache_blocks=True,
    )
    assert allocated is not None
    kept = cache.get_blocks(one.request_id).get_block_ids()
    for group, found in zip(hits.blocks, kept, strict=True):
        assert len(found) == HIT + EXTERNAL
        assert found[:HIT] == [block.block_id for block in group]
    return [block for group in kept for block in group]


def check(cache: Any, ids: list[int]) -> None:
    assert len(set(ids)) == len(ids), "a block was handed out twice"
    assert all(cache.block_pool.blocks[block].ref_cnt == 1 for block in ids)


@pytest.mark.parametrize("groups", [2, 3])
def test_local_hits_of_all_groups_survive_external_tokens(groups: int) -> None:
    assert compat.probe().two_phase_allocation
    cache = manager(groups)
    leave_a_prefix_at_the_head_of_the_free_queue(cache)
    check(cache, load(cache, request("new", HIT + EXTERNAL, 1)))


@pytest.mark.parametrize("groups", [2, 3])
def test_they_survive_when_the_request_is_preempted_and_allocated_again(groups: int) -> None:
    cache = manager(groups)
    leave_a_prefix_at_the_head_of_the_free_queue(cache)
    one = request("new", HIT + EXTERNAL, 1)
    check(cache, load(cache, one))
    cache.free(one)
    assert cache.get_blocks("new").get_block_ids() == tuple([] for _ in range(groups))
    check(cache, load(cache, one))


@pytest.mark.parametrize("groups", [2, 3])
def test_allocation_group_by_group_is_noticed(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: allocated as before vLLM 0.24, the same steps lose a hit or hand a block out twice."""
    cache = manager(groups)
    leave_a_prefix_at_the_head_of_the_free_queue(cache)

    def one_phase(request_id: str, new_computed_blocks: Any, **tokens: Any) -> None:
        local, external = tokens["num_local_computed_tokens"], tokens["num_external_computed_tokens"]
        for group, found in zip(cache.coordinator.single_type_managers, new_computed_blocks, strict=True):
            group.add_local_computed_blocks(request_id, found, local, external)
            group.allocate_external_computed_blocks(request_id, local, external)

    monkeypatch.setattr(cache.coordinator, "allocate_new_computed_blocks", one_phase)
    with pytest.raises(AssertionError, match="handed out twice"):
        check(cache, load(cache, request("new", HIT + EXTERNAL, 1)))
