"""What publishers say of common models beyond ``model_facts``: parameters, width, heads.

From the models' own cards and configurations. Keys are those of ``model_facts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One model: billions of parameters, those that a token uses, hidden size, query heads.

    ``width`` is the size of a query and a value of one head together where it is not twice ``head_dim`` of the KV;
    ``bytes_each`` what a parameter takes as published.
    """

    billions: float
    active: float
    hidden: int
    heads: int
    width: int | None = None
    bytes_each: float = 2.0


def _dense(billions: float, hidden: int, heads: int) -> Published:
    return Published(billions, billions, hidden, heads)


# Attention of DeepSeek's prefill: queries of 128 + 64, values of 128. Its weights are published as fp8 from V3 on.
_LATENT = 192 + 128
# gpt-oss is published with its experts in MXFP4: checkpoints of 12.8 GiB and 60.8 GiB by its model card.
_OSS_20B, _OSS_120B = 12.8 * 2**30 / 20.9e9, 60.8 * 2**30 / 116.8e9

MODELS: Mapping[str, Published] = {
    "qwen/qwen3-0.6b": _dense(0.6, 1024, 16),
    "qwen/qwen3-1.7b": _dense(1.7, 2048, 16),
    "qwen/qwen3-4b": _dense(4.0, 2560, 32),
    "qwen/qwen3-4b-instruct-2507": _dense(4.0, 2560, 32),
    "qwen/qwen3-4b-thinking-2507": _dense(4.0, 2560, 32),
    "qwen/qwen3-8b": _dense(8.2, 4096, 32),
    "qwen/qwen3-14b": _dense(14.8, 5120, 40),
    "qwen/qwen3-32b": _dense(32.8, 5120, 64),
    "qwen/qwen3-30b-a3b": Published(30.5, 3.3, 2048, 32),
    "qwen/qwen3-30b-a3b-instruct-2507": Published(30.5, 3.3, 2048, 32),
    "qwen/qwen3-30b-a3b-thinking-2507": Published(30.5, 3.3, 2048, 32),
    "qwen/qwen3-235b-a22b": Published(235, 22, 4096, 64),
    "qwen/qwen3-coder-30b-a3b": Published(30.5, 3.3, 2048, 32),
    "qwen/qwen3-next-80b-a3b": Published(80, 3, 2048, 16),
    "qwen/qwen2.5-0.5b": _dense(0.49, 896, 14),
    "qwen/qwen2.5-1.5b": _dense(1.54, 1536, 12),
    "qwen/qwen2.5-7b": _dense(7.61, 3584, 28),
    "qwen/qwen2.5-32b": _dense(32.5, 5120, 40),
    "qwen/qwen2.5-72b": _dense(72.7, 8192, 64),
    "meta-llama/llama-3.1-8b": _dense(8.03, 4096, 32),
    "meta-llama/llama-3.1-70b": _dense(70.6, 8192, 64),
    "meta-llama/llama-3.1-405b": _dense(406, 16384, 128),
    "meta-llama/llama-3.2-1b": _dense(1.24, 2048, 32),
    "meta-llama/llama-3.2-3b": _dense(3.21, 3072, 24),
    "meta-llama/llama-3.3-70b": _dense(70.6, 8192, 64),
    "meta-llama/meta-llama-3-8b": _dense(8.03, 4096, 32),
    "meta-llama/meta-llama-3-70b": _dense(70.6, 8192, 64),
    "google/gemma-3-1b": _dense(1.0, 1152, 4),
    "google/gemma-3-4b": _dense(4.3, 2560, 8),
    "google/gemma-3-12b": _dense(12.2, 3840, 16),
    "google/gemma-3-27b": _dense(27.4, 5376, 32),
    "openai/gpt-oss-20b": Published(20.9, 3.6, 2880, 64, bytes_each=_OSS_20B),
    "openai/gpt-oss-120b": Published(116.8, 5.1, 2880, 64, bytes_each=_OSS_120B),
    "mistralai/mistral-small-3.2-24b": _dense(24, 5120, 32),
    "mistralai/mixtral-8x7b": Published(46.7, 12.9, 4096, 32),
    "tiiuae/falcon-h1-0.5b": _dense(0.5, 1024, 8),
    "tiiuae/falcon-h1-1.5b": _dense(1.5, 2048, 8),
    "tiiuae/falcon-h1-7b": _dense(7.6, 3072, 12),
    "deepseek-ai/deepseek-v2-lite": Published(15.7, 2.4, 2048, 16, _LATENT),
    "deepseek-ai/deepseek-v3": Published(671, 37, 7168, 128, _LATENT, 1.0),
    "deepseek-ai/deepseek-r1": Published(671, 37, 7168, 128, _LATENT, 1.0),
}

_FOUR_BITS = 0.6
_VARIANTS = (("fp8", 1.0), ("int8", 1.0), ("awq", _FOUR_BITS), ("gptq", _FOUR_BITS), ("int4", _FOUR_BITS))


def bytes_of_variant(variant: str) -> float | None:
    """Bytes of a parameter by the end of a model's name, such as ``-fp8``; None where it says nothing.

    Of four bits with their scales, and with embeddings of sixteen: 0.6.
    """
    return next((width for word, width in (*_VARIANTS, ("nvfp4", _FOUR_BITS)) if f"-{word}" in variant), None)
