"""What is known about models, and what is left open."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import faults, pair, render

from kvserving_operator.api.v1alpha1 import StatedFacts
from kvserving_operator.model_facts import ModelFacts, from_config, lookup, resolve

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 40960,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 36,
}
GEMMA3_SETTINGS: dict[str, Any] = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_size": 2560,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131072,
}
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": GEMMA3_SETTINGS,
    "vision_config": {"num_hidden_layers": 27},
}
GEMMA3_TEXT = {
    **GEMMA3_SETTINGS,
    "sliding_window_pattern": None,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 262144,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}
FALCON_H1 = {
    "model_type": "falcon_h1",
    "num_hidden_layers": 36,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "mamba_d_state": 128,
    "mamba_n_heads": 24,
    "max_position_embeddings": 16384,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
    "hidden_size": 7168,
}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 2048,
    "max_position_embeddings": 131072,
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (QWEN3, ("attention", 36, 8, 128, 40960, False)),
        (GEMMA3, ("slidingWindow", 34, 4, 256, 131072, False)),
        (GEMMA3_TEXT, ("slidingWindow", 34, 4, 256, 131072, False)),
        (QWEN3_NEXT, ("recurrent", 48, 2, 256, 262144, False)),
        (
            {**QWEN3_NEXT, "layer_types": ["linear_attention", "full_attention"]},
            ("recurrent", 48, 2, 256, 262144, False),
        ),
        (FALCON_H1, ("recurrent", 36, 2, 64, 16384, False)),
        (DEEPSEEK, ("attention", 61, 1, 576, 163840, True)),
        (LLAMA, ("attention", 16, 8, 64, 131072, False)),
        ({**QWEN3, "layer_types": ["full_attention"] * 36}, ("attention", 36, 8, 128, 40960, False)),
        ({}, (None, None, None, None, None, False)),
        ({"num_hidden_layers": "36", "num_attention_heads": True}, (None, None, None, None, None, False)),
    ],
    ids=[
        "qwen3",
        "gemma3",
        "gemma3-text",
        "qwen3-next",
        "qwen3-next-types",
        "falcon-h1",
        "mla",
        "llama",
        "types",
        "empty",
        "odd",
    ],
)
def test_facts_from_a_configuration(config: dict[str, Any], expected: tuple[Any, ...]) -> None:
    facts = from_config(config)
    assert (facts.kind, facts.layers, facts.kv_heads, facts.head_dim, facts.max_length, facts.latent) == expected


@pytest.mark.parametrize(
    ("uri", "kv_heads"),
    [
        ("hf://Qwen/Qwen3-30B-A3B-Instruct-2507", 4),
        ("hf://Qwen/Qwen3-8B", 8),
        ("hf://Qwen/Qwen3-8B-FP8", 8),
        ("hf://meta-llama/Llama-3.1-8B-Instruct", 8),
        ("file:///models/Qwen/Qwen3-0.6B", 8),
        ("pvc://weights/google/gemma-3-12b-it", 8),
    ],
)
def test_common_models_are_known(uri: str, kv_heads: int) -> None:
    facts = lookup(uri)
    assert facts is not None
    assert facts.kv_heads == kv_heads


@pytest.mark.parametrize(
    "uri",
    [
        "hf://deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "hf://Qwen/Qwen3-80B",
        "hf://someone/Qwen3-8B",
        "file:///tmp/m",
        "hf://Qwen/Qwen3-8B-MyTune",
        "hf://Qwen",
    ],
)
def test_nothing_is_guessed_from_a_similar_name(uri: str) -> None:
    assert lookup(uri) is None


def test_stated_facts_win_over_observed_over_the_table() -> None:
    observed = ModelFacts("slidingWindow", 10, 2, 64, 100, source="observed")
    assert resolve("hf://Qwen/Qwen3-8B", None, None).source == "table"
    assert resolve("hf://Qwen/Qwen3-8B", None, observed) == observed
    stated = resolve("hf://Qwen/Qwen3-8B", StatedFacts.model_validate({"kvHeads": 7}), observed)
    assert (stated.kv_heads, stated.kind, stated.source) == (7, "slidingWindow", "stated")


def test_unknown_facts_are_said_with_the_checks_they_skip() -> None:
    spec = pair(model={"uri": "hf://example-org/unknown"}, prefill={"parallelism": {"tensor": 8}})
    (notice,) = render(spec).plan.notices
    assert notice.reason == "ModelFactsUnknown"
    assert "kvHeads" in notice.message
    assert "spec.model.facts" in notice.message


def test_stated_heads_bring_the_check_back() -> None:
    model = {"uri": "hf://example-org/unknown", "facts": {"kvHeads": 4, "kind": "attention"}}
    assert "KV heads" in faults(pair(model=model, prefill={"parallelism": {"tensor": 8}}))
    assert render(pair(model=model)).plan.notices == ()
