"""Builds MultiConnector and vLLM's own scheduler around it, for tests."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

BLOCK = 16
_MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


def child(name: str, *, module: str | None = "tests.connector.multi_children", **settings: Any) -> dict[str, Any]:
    """Configuration of a child; ``load_weight``, ``defer`` go to its extra configuration, the rest beside its name."""
    extra = {key: settings.pop(key) for key in ("load_weight", "defer") if key in settings}
    found = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra, **settings}
    return found if module is None else {**found, "kv_connector_module_path": module}


def configuration(children: list[dict[str, Any]], *, hybrid: bool = True, scheduling: bool = False) -> Any:
    """vLLM's configuration for MultiConnector with ``children``; ``scheduling`` adds what a scheduler needs."""
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        KVTransferConfig,
        ModelConfig,
        SchedulerConfig,
        VllmConfig,
    )

    more: dict[str, Any] = {}
    if scheduling:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
            more["model_config"] = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", seed=0)
        more["scheduler_config"] = SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=1024,
            max_model_len=1024,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        )
    config = VllmConfig(
        device_config=DeviceConfig(device="cpu"),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        kv_transfer_config=KVTransferConfig(
            kv_connector="MultiConnector",
            kv_connector_module_path="kvserving_connector.vllm.multi",
            kv_role="kv_both",
            kv_buffer_device="cpu",
            engine_id="engine",
            kv_connector_extra_config={"connectors": copy.deepcopy(children)},
        ),
        **more,
    )
    config.scheduler_config.disable_hybrid_kv_cache_manager = not hybrid
    return config


def cache_config(blocks: int) -> Any:
    """One group of full attention with ``blocks`` blocks."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float32)
    return KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])


def connector(children: list[dict[str, Any]], *, hybrid: bool = True, model: Any = None) -> Any:
    """The scheduler's half of MultiConnector, made from its module path."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    if not children:
        config = configuration([child("Scripted")])
        config.kv_transfer_config.kv_connector_extra_config["connectors"] = []
    else:
        plain = [{key: value for key, value in one.items() if key != "engine_id"} for one in children]
        config = configuration(plain, hybrid=hybrid)
        config.kv_transfer_config.kv_connector_extra_config["connectors"] = copy.deepcopy(children)
    if model is not None:
        config.model_config = model
    multi = KVConnectorFactory.get_connector_class(config.kv_transfer_config)
    return multi(config, KVConnectorRole.SCHEDULER, cache_config(100))


def scheduler(children: list[dict[str, Any]], *, blocks: int = 100) -> Any:
    """vLLM's scheduler with MultiConnector; ``published`` collects the statistics of every step."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    config = configuration(children, scheduling=True)
    config.cache_config.num_gpu_blocks = blocks
    made = Scheduler(
        vllm_config=config,
        kv_cache_config=cache_config(blocks),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        log_stats=True,
    )
    made.published = []
    return made


def request(request_id: str, tokens: int, params: Any = None) -> Any:
    """A request of ``tokens`` tokens that no other request shares."""
    import random

    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    prompt = random.Random(request_id).choices(range(512), k=tokens)
    sampling = SamplingParams(max_tokens=64, extra_args={"kv_transfer_params": params} if params else None)
    sampling.update_from_generation_config({}, 1)
    return Request(request_id, prompt, sampling, None, block_hasher=get_request_block_hasher(BLOCK, sha256))


def step(engine: Any, received: tuple[str, ...] = ()) -> Any:
    """One step of the engine, every request one token further; asynchronous loads of ``received`` have ended."""
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

    planned = engine.schedule()
    ids = list(planned.num_scheduled_tokens)
    outputs = engine.update_from_output(
        planned,
        ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={one: index for index, one in enumerate(ids)},
            sampled_token_ids=[[7] for _ in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=KVConnectorOutput(finished_recving=set(received)) if received else None,
        ),
    )
    for one in outputs.values():
        if one.scheduler_stats is not None:
            engine.published.append(one.scheduler_stats.kv_connector_stats)
    return planned


def sent(stats: Any) -> Any:
    """What the scheduler hands on of statistics: vLLM before 0.30 sends the children's objects as they are."""
    return stats.to_dict() if hasattr(stats, "to_dict") else stats.data


def inner(payload: Any) -> Any:
    """One child's lists or counts in what ``sent`` returns."""
    return getattr(payload, "data", payload)


def finish(engine: Any, request_id: str) -> None:
    """End a request as a client does that goes away."""
    from vllm.v1.request import RequestStatus

    engine.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
