"""vLLM's configuration of an engine with ``WorkerCacheConnector``."""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.connector.worker_cache.pages import VOCABULARY
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.kv_cache_interface import MambaSpec

LONGEST = 4096
_MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LONGEST,
    "torch_dtype": "float32",
}


@functools.cache
def _model() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
        return ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=0)


def configuration(
    extra: dict[str, Any],
    groups: Sequence[Any],
    *,
    blocks: int = 64,
    ranks: int = 1,
    batch: int = 1024,
    name: str = "engine",
    policy: str = "recompute",
    asynchronous: bool = False,
    caching: bool = True,
    facts: Mapping[str, Any] | None = None,
) -> Any:
    """vLLM's configuration of such an engine; ``facts`` are attributes of the model's configuration."""
    states = any(isinstance(spec, MambaSpec) for spec in groups)
    model = copy.copy(_model())
    for name_of, value in (facts or {}).items():
        setattr(model, name_of, value)
    config = VllmConfig(
        model_config=model,
        device_config=DeviceConfig(device="cpu"),
        cache_config=CacheConfig(block_size=groups[0].block_size, enable_prefix_caching=caching),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=batch,
            max_model_len=LONGEST,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=asynchronous,
        ),
        kv_transfer_config=KVTransferConfig(
            kv_connector="WorkerCacheConnector",
            kv_connector_module_path="kvserving_connector.vllm.worker_cache",
            kv_role="kv_both",
            kv_buffer_device="cpu",
            engine_id=name,
            kv_load_failure_policy=policy,
            kv_connector_extra_config=extra,
        ),
    )
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.cache_config.num_gpu_blocks = blocks
    if states:
        config.cache_config.mamba_cache_mode = "align"
    config.parallel_config.tensor_parallel_size = config.parallel_config.world_size = ranks
    return config


def store(folder: Path, **more: Any) -> dict[str, Any]:
    """Return the settings of an L2 in a folder."""
    tier = {"type": "SharedStoreTier", "urls": [f"file://{folder}"], "identity": {"weights": "w"}, **more}
    return {"secondary_tiers": [tier]}
