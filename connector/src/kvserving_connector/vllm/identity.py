"""Facts about model and engine that vLLM's offloading configuration leaves out and KV bytes depend on."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vllm.platforms import current_platform

from kvserving_connector.settings import logger
from kvserving_connector.store.namespace import Namespace
from kvserving_connector.store.weights import fingerprint

_CONFIGS = ("config.json", "adapter_config.json")


def store_identity(vllm_config: Any) -> dict[str, str]:
    """Return what a SharedStoreTier takes as ``identity``: revision, weights, quantisation, overrides, device, backend.

    Weights are told apart by the commit of the hub's snapshot, or by a fingerprint of the files in a local directory.
    Raises nothing: what cannot be found out is left out, with a line in the log.
    """
    model = vllm_config.model_config
    attention = getattr(vllm_config, "attention_config", None)
    speculative = getattr(vllm_config, "speculative_config", None)
    cache = vllm_config.cache_config
    parallel = getattr(vllm_config, "parallel_config", None)
    spread = max(getattr(parallel, f"{kind}_context_parallel_size", 1) or 1 for kind in ("decode", "prefill")) > 1
    facts = {
        "cp_interleave": getattr(parallel, "cp_kv_cache_interleave_size", None) if spread else None,
        "revision": getattr(model, "revision", None),
        "weights": weights_of(str(model.model), getattr(model, "revision", None)),
        "model_dtype": str(getattr(model, "dtype", "")),
        "quantization": getattr(model, "quantization", None),
        "overrides": _text(getattr(model, "hf_overrides", None)),
        "device": str(current_platform.device_type),
        "attention": _text(getattr(attention, "backend", None)),
        "draft": getattr(speculative, "model", None),
        "kv_scales": _text(getattr(cache, "calculate_kv_scales", None)),
        "hash_lookahead": _text(getattr(cache, "num_hash_lookahead_tokens", None)),
        "rope_length": _rope_length(model),
        "state_dtypes": _text([getattr(cache, f"mamba_{name}dtype", None) for name in ("cache_", "ssm_cache_")]),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _rope_length(model: Any) -> str | None:
    """Return the longest request where keys depend on it: with LongRoPE it decides which factors are used."""
    config = getattr(model, "hf_text_config", None) or getattr(model, "hf_config", None)
    ropes = [getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")]
    return str(model.max_model_len) if any("long_factor" in str(rope) for rope in ropes) else None


def weights_of(model: str, revision: str | None) -> str:
    """Return what identifies the weights behind a name or path; '' when that cannot be found out."""
    path = Path(model)
    try:
        if path.is_dir():
            return fingerprint(path)
    except OSError as error:
        logger.warning("KVServing: the files of %s cannot be read for the store's namespace: %s", model, error)
        return ""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError as error:
        logger.warning("KVServing: the model's commit is not part of the store's namespace: %s", error)
        return ""
    try:
        found = [try_to_load_from_cache(model, name, revision=revision) for name in _CONFIGS]
    except (ValueError, OSError):
        # No name of the hub, such as an address of an object store.
        return ""
    # What the hub is known not to have is neither None nor a path.
    return next((Path(cached).parent.name for cached in found if isinstance(cached, str)), "")


def _text(value: Any) -> str | None:
    if value is None or value in ({}, [], [None, None], False):
        return None
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True, default=str)
    return str(getattr(value, "name", value))


def namespace_of(
    config: Any,
    *,
    chunk_bytes: int,
    hash_root: str,
    tenant: str,
    engine: str,
    identity: Mapping[str, str],
    rank: int | None = None,
) -> Namespace:
    """Return the namespace of an engine's objects from vLLM's ``OffloadingConfig``.

    ``chunk_bytes`` is the length of an object's body; ``rank`` that of the worker whose share of the KV is in it, None
    for objects with the shares of all workers.
    """
    parallel = config.parallel
    sizes = {
        name: int(getattr(parallel, name, 1)) for name in ("world_size", "tp_size", "pp_size", "pcp_size", "dcp_size")
    }
    sizes |= {name: int(bool(getattr(config, name, False))) for name in ("replicated_layout", "canonical_layout")}
    if rank is not None:
        sizes["rank"] = rank
    groups: Collection[Any] = config.groups
    return Namespace(
        model=config.model.name,
        kv_dtype=config.model.dtype,
        layout=str(getattr(config, "kv_cache_layout", None)),
        groups=tuple((group.tokens_per_block, tuple(group.layer_names)) for group in groups),
        tokens_per_hash=config.cache.tokens_per_hash,
        blocks_per_chunk=config.cache.blocks_per_chunk,
        chunk_bytes=chunk_bytes,
        parallel=sizes,
        hash_root=hash_root,
        tenant=tenant,
        engine=engine,
        identity=identity,
    )
