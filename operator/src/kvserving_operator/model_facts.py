"""What the plan must know of a model, from its configuration, from a table, or as stated.

Nothing is guessed: what is not known stays None, and the checks that need it say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from .api.types import quoted
from .api.v1alpha1 import StatedFacts

Kind = Literal["attention", "slidingWindow", "recurrent"]
Source = Literal["stated", "observed", "table", "unknown"]

# What may follow a name in the table without changing the facts. "-distill-qwen-7b" may not.
_VARIANT = re.compile(r"(-(instruct|chat|base|it|pt|hf|fp8|awq|gptq|int4|int8|bf16|nvfp4|dynamic|v?[0-9.]+))*")
_RECURRENT_LAYERS = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "short_conv"}
_SLIDING_LAYERS = {"sliding_attention", "chunked_attention", "local_attention"}

MOST = 100_000_000
"""Largest number that a setting of a model may be; the largest that are known are contexts of ten million tokens."""

# Settings that are read, by the least that they may be where they are whole numbers. -1 stands for "none".
_LEAST: dict[str, int] = {
    **dict.fromkeys(
        (
            *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
            *("vocab_size", "max_position_embeddings", "kv_lora_rank", "full_attention_interval"),
            "sliding_window_pattern",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            *("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "intermediate_size", "moe_intermediate_size"),
            *("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "first_k_dense_replace"),
            *("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_d_ssm", "mamba_d_conv", "mamba_n_groups"),
            *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
            "linear_conv_kernel_dim",
        ),
        0,
    ),
    "sliding_window": -1,
}
_TEXTS = ("model_type", "dtype", "torch_dtype")
_LISTS = ("layer_types", "layers_block_type")


@dataclass(frozen=True)
class ModelFacts:
    """Facts about one model; None means not known.

    ``latent`` is true for models with multi-head latent attention, whose KV is replicated
    over tensor ranks by design; ``kv_heads`` is then 1.
    """

    kind: Kind | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    max_length: int | None = None
    latent: bool = False
    source: Source = "unknown"

    @property
    def several_groups(self) -> bool | None:
        """Whether vLLM keeps more than one KV cache group for the model; None if not known."""
        return None if self.kind is None else self.kind != "attention"


def resolve(uri: str, stated: StatedFacts | None, observed: ModelFacts | None) -> ModelFacts:
    """Facts of the model at ``uri``: stated ones over observed ones over the table's."""
    base = observed or lookup(uri) or ModelFacts()
    if stated is None:
        return base
    given: dict[str, Any] = {key: value for key, value in stated.model_dump().items() if value is not None}
    return replace(base, **given, source="stated") if given else base


def lookup(uri: str) -> ModelFacts | None:
    """Facts of a common model, by the ``owner/name`` of its hub address or of a path's end."""
    best, _ = common_name(uri)
    return None if best is None else _TABLE[best]


def common_name(uri: str) -> tuple[str | None, str]:
    """Name of a common model as tables have it, None where it is none, and what follows it at ``uri``: its variant."""
    name = "/".join(uri.partition("://")[2].rstrip("/").split("/")[-2:]).lower()
    best = max((key for key in _TABLE if name.startswith(key)), key=len, default=None)
    if best is None or not _VARIANT.fullmatch(name.removeprefix(best)):
        return None, ""
    return best, name.removeprefix(best)


def from_config(config: Mapping[str, Any]) -> ModelFacts:
    """Facts from a model's ``config.json``. Unknown shapes leave what they hide at None."""
    merged = settings(config)
    heads = _number(merged, "num_attention_heads")
    hidden = _number(merged, "hidden_size")
    head_dim = _number(merged, "head_dim") or (hidden // heads if hidden and heads else None)
    latent = _number(merged, "kv_lora_rank") is not None
    if latent:
        head_dim = (_number(merged, "kv_lora_rank") or 0) + (_number(merged, "qk_rope_head_dim") or 0)
    return ModelFacts(
        kind=_kind(merged),
        layers=_number(merged, "num_hidden_layers"),
        kv_heads=1 if latent else _number(merged, "num_key_value_heads") or heads,
        head_dim=head_dim,
        max_length=_number(merged, "max_position_embeddings"),
        latent=latent,
        source="observed",
    )


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the language model, also of one that sees."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, Mapping) else dict(config)


def faults_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What no model can have of the settings that are read here and by a sizing: each by key, value and reason."""
    return tuple(_faults(settings(config)))


def _faults(merged: Mapping[str, Any]) -> Iterator[str]:
    for key, least in _LEAST.items():
        value = _number(merged, key)
        if value is not None and not least <= value <= MOST:
            yield f"{key} {quoted(value)} is no number from {least} to {MOST:,}"
    for key in _TEXTS:
        if not isinstance(value := merged.get(key), (str, type(None))):
            yield f"{key} {quoted(value)} is no text"
    for key in _LISTS:
        value = merged.get(key)
        odd = [kind for kind in value if not isinstance(kind, str)] if isinstance(value, list) else []
        if odd:
            yield f"{key} holds {quoted(odd[0])}, which is no kind of a layer"
    bounds = [("num_experts_per_tok", key) for key in ("num_experts", "num_local_experts", "n_routed_experts")]
    for part, whole in (*bounds, ("first_k_dense_replace", "num_hidden_layers")):
        used, there = _number(merged, part), _number(merged, whole)
        # A model without experts may name them with 0.
        if used is not None and there and 0 < there < used:
            yield f"{part} {used:,} is above {whole} {there:,}"


def _number(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _kind(config: Mapping[str, Any]) -> Kind | None:
    layer_types = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(layer_types, list):
        kinds = {str(kind) for kind in layer_types}
        if kinds & _RECURRENT_LAYERS:
            return "recurrent"
        return "slidingWindow" if kinds & _SLIDING_LAYERS else "attention"
    if any(key.startswith(("mamba_", "linear_", "ssm_")) for key in config) or "state_size" in config:
        return "recurrent"
    if config.get("sliding_window_pattern") or ((_number(config, "sliding_window") or 0) > 0 and _slides(config)):
        return "slidingWindow"
    return "attention" if _number(config, "num_attention_heads") else None


def _slides(config: Mapping[str, Any]) -> bool:
    # Qwen2 and Qwen3 carry a window that use_sliding_window switches off.
    return config.get("use_sliding_window", True) is not False


def _facts(
    kind: Kind, layers: int, kv_heads: int, head_dim: int, max_length: int, *, latent: bool = False
) -> ModelFacts:
    return ModelFacts(kind, layers, kv_heads, head_dim, max_length, latent, "table")


# Beginnings of owner/name in lower case; the longest that matches wins.
_TABLE: dict[str, ModelFacts] = {
    "qwen/qwen3-0.6b": _facts("attention", 28, 8, 128, 40960),
    "qwen/qwen3-1.7b": _facts("attention", 28, 8, 128, 40960),
    "qwen/qwen3-4b": _facts("attention", 36, 8, 128, 40960),
    "qwen/qwen3-4b-instruct-2507": _facts("attention", 36, 8, 128, 262144),
    "qwen/qwen3-4b-thinking-2507": _facts("attention", 36, 8, 128, 262144),
    "qwen/qwen3-8b": _facts("attention", 36, 8, 128, 40960),
    "qwen/qwen3-14b": _facts("attention", 40, 8, 128, 40960),
    "qwen/qwen3-32b": _facts("attention", 64, 8, 128, 40960),
    "qwen/qwen3-30b-a3b": _facts("attention", 48, 4, 128, 40960),
    "qwen/qwen3-30b-a3b-instruct-2507": _facts("attention", 48, 4, 128, 262144),
    "qwen/qwen3-30b-a3b-thinking-2507": _facts("attention", 48, 4, 128, 262144),
    "qwen/qwen3-235b-a22b": _facts("attention", 94, 4, 128, 40960),
    "qwen/qwen3-coder-30b-a3b": _facts("attention", 48, 4, 128, 262144),
    "qwen/qwen3-next-80b-a3b": _facts("recurrent", 48, 2, 256, 262144),
    "qwen/qwen2.5-0.5b": _facts("attention", 24, 2, 64, 32768),
    "qwen/qwen2.5-1.5b": _facts("attention", 28, 2, 128, 32768),
    "qwen/qwen2.5-7b": _facts("attention", 28, 4, 128, 32768),
    "qwen/qwen2.5-32b": _facts("attention", 64, 8, 128, 32768),
    "qwen/qwen2.5-72b": _facts("attention", 80, 8, 128, 32768),
    "meta-llama/llama-3.1-8b": _facts("attention", 32, 8, 128, 131072),
    "meta-llama/llama-3.1-70b": _facts("attention", 80, 8, 128, 131072),
    "meta-llama/llama-3.1-405b": _facts("attention", 126, 8, 128, 131072),
    "meta-llama/llama-3.2-1b": _facts("attention", 16, 8, 64, 131072),
    "meta-llama/llama-3.2-3b": _facts("attention", 28, 8, 128, 131072),
    "meta-llama/llama-3.3-70b": _facts("attention", 80, 8, 128, 131072),
    "meta-llama/meta-llama-3-8b": _facts("attention", 32, 8, 128, 8192),
    "meta-llama/meta-llama-3-70b": _facts("attention", 80, 8, 128, 8192),
    "google/gemma-3-1b": _facts("slidingWindow", 26, 1, 256, 32768),
    "google/gemma-3-4b": _facts("slidingWindow", 34, 4, 256, 131072),
    "google/gemma-3-12b": _facts("slidingWindow", 48, 8, 256, 131072),
    "google/gemma-3-27b": _facts("slidingWindow", 62, 16, 128, 131072),
    "openai/gpt-oss-20b": _facts("slidingWindow", 24, 8, 64, 131072),
    "openai/gpt-oss-120b": _facts("slidingWindow", 36, 8, 64, 131072),
    "mistralai/mistral-small-3.2-24b": _facts("attention", 40, 8, 128, 131072),
    "mistralai/mixtral-8x7b": _facts("attention", 32, 8, 128, 32768),
    "tiiuae/falcon-h1-0.5b": _facts("recurrent", 36, 2, 64, 16384),
    "tiiuae/falcon-h1-1.5b": _facts("recurrent", 24, 2, 128, 131072),
    "tiiuae/falcon-h1-7b": _facts("recurrent", 44, 2, 128, 262144),
    "deepseek-ai/deepseek-v2-lite": _facts("attention", 27, 1, 576, 163840, latent=True),
    "deepseek-ai/deepseek-v3": _facts("attention", 61, 1, 576, 163840, latent=True),
    "deepseek-ai/deepseek-r1": _facts("attention", 61, 1, 576, 163840, latent=True),
}
