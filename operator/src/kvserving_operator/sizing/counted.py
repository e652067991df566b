"""What a model's ``config.json`` tells a sizing: parameters, width, layers by kind, states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..model_facts import MOST

# Families whose layers are attention with rotary positions and a gated network of three matrices, and nothing else of
# any size. Of others the files tell how large they are.
_GATED = {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma3_text"}
_FULL, _SLIDING = {"full_attention", "attention"}, {"sliding_attention", "chunked_attention", "local_attention"}
# Scaling that max_position_embeddings has in it already, as in Gemma 3 (vLLM, vllm/config/model.py).
_UNSCALED = {"su", "longrope", "llama3"}
_STATE_BYTES, _CONVOLUTION_BYTES = 4, 2


@dataclass(frozen=True)
class Layers:
    """Layers of a model that keep every token, that keep ``window`` tokens, and the bytes of all recurrent states."""

    full: int
    sliding: int = 0
    window: int = 0
    state_bytes: int = 0


def whole(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of the settings that is a whole number."""
    found = (config.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)


def parameters(config: Mapping[str, Any]) -> float | None:
    """Number of parameters by the sizes of the matrices; None for families of which this is not known."""
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    sizes = [whole(config, name) for name in names]
    if str(config.get("model_type")) not in _GATED or None in sizes:
        return None
    layers, hidden, heads, inner, words = (size or 0 for size in sizes)
    kv_heads = whole(config, "num_key_value_heads") or heads
    head_dim = whole(config, "head_dim") or hidden // heads
    experts = whole(config, "num_experts", "num_local_experts") or 0
    network = experts * _expert(config) + hidden * experts if experts else 3 * hidden * inner
    embeddings = words * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return float(layers * (2 * hidden * head_dim * (heads + kv_heads) + network) + embeddings)


def idle_parameters(config: Mapping[str, Any]) -> float | None:
    """Parameters of the experts that a token does not use; None where they cannot be told, 0 without experts."""
    experts = whole(config, "num_experts", "num_local_experts", "n_routed_experts")
    if not experts:
        return 0.0
    used, layers = whole(config, "num_experts_per_tok"), whole(config, "num_hidden_layers")
    if not used or not layers or not _expert(config):
        return None
    dense = whole(config, "first_k_dense_replace") or 0
    return float((layers - dense) * (experts - used) * _expert(config))


def _expert(config: Mapping[str, Any]) -> int:
    return 3 * (whole(config, "hidden_size") or 0) * (whole(config, "moe_intermediate_size", "intermediate_size") or 0)


def bytes_each(config: Mapping[str, Any]) -> float | None:
    """Bytes of a stored parameter; None where the configuration does not say."""
    quantized = config.get("quantization_config")
    if isinstance(quantized, Mapping):
        bits = {"fp8": 1.0, "awq": 0.6, "gptq": 0.6, "mxfp4": 0.55}
        return bits.get(str(quantized.get("quant_method")))
    widths = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0}
    return widths.get(str(config.get("dtype") or config.get("torch_dtype")))


def layers(config: Mapping[str, Any]) -> Layers | None:
    """Layers by what they keep of a prompt; None where the configuration does not tell."""
    total, kinds = whole(config, "num_hidden_layers"), config.get("layer_types")
    if not total:
        return None
    if isinstance(kinds, list):
        full, sliding = (sum(str(kind) in wanted for kind in kinds) for wanted in (_FULL, _SLIDING))
    elif _mamba(config):
        # Falcon-H1: every layer has both.
        full, sliding = total, 0
    elif every := whole(config, "full_attention_interval"):
        full, sliding = total // every, 0
    elif every := whole(config, "sliding_window_pattern"):
        full, sliding = total // every, total - total // every
    else:
        return None
    recurrent = total if _mamba(config) else total - full - sliding
    state = _mamba(config) or _delta_net(config)
    window = max(0, whole(config, "sliding_window") or 0)
    if (recurrent and not state) or (sliding and not window):
        return None
    return Layers(full, sliding, window, recurrent * state)


def _mamba(config: Mapping[str, Any]) -> int:
    """Bytes of the state of one mamba layer."""
    heads, size, state = (whole(config, f"mamba_{name}") or 0 for name in ("n_heads", "d_head", "d_state"))
    inner, kernel = whole(config, "mamba_d_ssm") or heads * size, whole(config, "mamba_d_conv") or 1
    channels = inner + 2 * (whole(config, "mamba_n_groups") or 1) * state
    return heads * size * state * _STATE_BYTES + (kernel - 1) * channels * _CONVOLUTION_BYTES if heads else 0


def _delta_net(config: Mapping[str, Any]) -> int:
    """Bytes of the state of one layer with a gated delta net."""
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    keys, values, key, value, kernel = (whole(config, f"linear_{name}") or 0 for name in names)
    channels = 2 * keys * key + values * value
    return values * key * value * _STATE_BYTES + max(0, kernel - 1) * channels * _CONVOLUTION_BYTES


def longest(config: Mapping[str, Any]) -> int | None:
    """The longest context that vLLM accepts for the model; None where the configuration does not tell.

    Scaled positions count by their factor, also of kinds of which newer versions of vLLM (0.32: yarn) do not multiply.
    """
    found = whole(config, "max_position_embeddings")
    if found is None:
        return None
    scaled = [found, whole(config, "model_max_length") or 0]
    gemma = "gemma3" in str(config.get("model_type"))
    for scaling in () if gemma else (config.get("rope_scaling"), config.get("rope_parameters")):
        if isinstance(scaling, Mapping) and str(scaling.get("rope_type") or scaling.get("type")) not in _UNSCALED:
            factor = scaling.get("factor")
            if isinstance(factor, (int, float)) and 1 <= factor <= MOST:
                scaled.append(int(max(found, whole(scaling, "original_max_position_embeddings") or 0) * factor))
    return max(scaled)
