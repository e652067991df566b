"""From vLLM's configuration of the KV cache to the planner, and the size of L1 in slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.v1 import kv_cache_interface as specs

from kvserving_connector.core.planner import Group, GroupKind, HybridOffloadPlanner
from kvserving_connector.core.worker_settings import Offload, WorkerCacheSettings

_FULL = (specs.FullAttentionSpec, specs.MLAAttentionSpec)


@dataclass(frozen=True)
class Geometry:
    """What both halves have to agree on. ``group_ids`` are vLLM's numbers of the planner's groups.

    ``cache_groups`` counts all of vLLM's, some of which may keep nothing that a prefix could be resumed from: with
    several, a failed load is told by request.
    """

    planner: HybridOffloadPlanner
    group_ids: tuple[int, ...]
    cache_groups: int
    ranks: int
    local_ranks: int
    config: Any
    """vLLM's ``OffloadingConfig``."""


def geometry(vllm_config: Any, kv_cache_config: Any, settings: WorkerCacheSettings) -> Geometry:
    """Return what the cache of this engine looks like.

    Raises ValueError naming the setting for a chunk size that does not fit the model, an engine without prefix caching,
    cache groups that cannot be resumed from a prefix, and lazy saving where a span has several blocks of a group.
    """
    if not vllm_config.cache_config.enable_prefix_caching:
        raise ValueError(
            "enable_prefix_caching=False: WorkerCacheConnector finds blocks by the hashes of prefix caching; start the "
            "engine without --no-enable-prefix-caching, or without cache.l1 and cache.l2"
        )
    if getattr(kv_cache_config, "hisparse_host_num_blocks", None) is not None:
        raise ValueError(
            "hisparse_config: with HiSparse the KV itself is in host memory already, where this tier does not see it; "
            "run the model without cache.l1 and cache.l2, or without HiSparse"
        )
    config = build_offloading_config(vllm_config, kv_cache_config)
    # vLLM 0.29 offloads every group, and so names none.
    group_ids = tuple(getattr(group, "group_id", index) for index, group in enumerate(config.groups))
    groups = [
        _group(kv_cache_config.kv_cache_groups[group_id].kv_cache_spec, group.tokens_per_block)
        for group_id, group in zip(group_ids, config.groups, strict=True)
    ]
    parallel = vllm_config.parallel_config
    planner = HybridOffloadPlanner.make(
        groups,
        hash_block_tokens=config.cache.tokens_per_hash,
        max_model_len=vllm_config.model_config.max_model_len,
        hybrid_chunk_size=settings.chunk_tokens,
    )
    if settings.offload is Offload.LAZY:
        _check_lazy(planner)
    cache_groups = len(kv_cache_config.kv_cache_groups)
    return Geometry(planner, group_ids, cache_groups, parallel.world_size, parallel.local_world_size, config)


def _check_lazy(planner: HybridOffloadPlanner) -> None:
    """Refuse parts of several blocks: the engine gives up blocks one by one, and a part is saved whole."""
    for group in range(len(planner.groups)):
        blocks = planner.blocks_per_part(group)
        if blocks > 1:
            raise ValueError(
                f"kv_connector_extra_config.offload='lazy': a span of {planner.span_tokens} tokens has {blocks} blocks "
                f"of cache group {group}, and the engine gives up blocks one by one; use offload 'eager', or a "
                "hybrid_chunk_size of one block where the model's groups allow it"
            )


def _group(spec: Any, block_tokens: int) -> Group:
    members: Sequence[Any] = (spec,)
    if isinstance(spec, specs.UniformTypeKVCacheSpecs):
        members = tuple(spec.kv_cache_specs.values())
    found = {_kind(member) for member in members}
    if len(found) > 1:
        raise ValueError(f"layers of one cache group differ in what a prefix needs of them: {sorted(found, key=str)}")
    kind, window = found.pop()
    return Group(kind, block_tokens, window)


def _kind(spec: Any) -> tuple[GroupKind, int | None]:
    if isinstance(spec, specs.MambaSpec):
        if spec.mamba_cache_mode != "align":
            raise ValueError(
                f"mamba_cache_mode={spec.mamba_cache_mode!r}: states are kept at no boundary that a prefix could be "
                "resumed from; start the engine with --mamba-cache-mode align, or without cache.l1 and cache.l2"
            )
        return GroupKind.MAMBA, None
    if isinstance(spec, specs.SlidingWindowSpec):
        # Tokens that vLLM keeps below the window for drafts count as part of it.
        return GroupKind.SLIDING_WINDOW, int(spec.sliding_window) + int(getattr(spec, "extra_retained_tokens", 0) or 0)
    # Of what is derived from it, some attend to less than all that came before (RSWASpec).
    if type(spec) in _FULL:
        return GroupKind.FULL, None
    raise ValueError(
        f"{type(spec).__name__}: nothing is known about resuming a prefix with such layers; run the model without "
        "cache.l1 and cache.l2"
    )
