"""What is known of a model, from where, and what is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sizing.support import model

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.v1alpha1 import KVSettings
from kvserving_operator.model_facts import ModelFacts, from_config, lookup
from kvserving_operator.sizing import counted
from kvserving_operator.sizing.models import Given, Model, OnDisk, resolve
from kvserving_operator.sizing.published import MODELS

QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "dtype": "bfloat16",
}
QWEN3_4B = QWEN3_8B | {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True}
LLAMA_70B = QWEN3_8B | {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
    "vocab_size": 128256,
}
QWEN3_30B = QWEN3_8B | {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "dtype": "bfloat16",
}
SLIDING = QWEN3_8B | {"layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 6, "sliding_window": 1024}


def found(config: dict[str, Any], weights: int = 0, uri: str = "file:///model", **given: Any) -> Model:
    return resolve(uri, from_config(config), KVSettings(), given=Given(**given), disk=OnDisk(config, weights))


def stated_by(files: int, **given: Any) -> Model:
    disk = OnDisk(QWEN3_8B, files)
    return resolve("file:///model", from_config(QWEN3_8B), KVSettings(), given=Given(**given), disk=disk)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("qwen/qwen3-8b", QWEN3_8B),
        ("qwen/qwen3-4b", QWEN3_4B),
        ("meta-llama/llama-3.1-70b", LLAMA_70B),
        ("qwen/qwen3-30b-a3b", QWEN3_30B),
    ],
)
def test_parameters_counted_by_the_matrices_are_those_that_the_publisher_names(
    name: str, config: dict[str, Any]
) -> None:
    known = found(config)
    assert known.parameters == pytest.approx(MODELS[name].billions * 1e9, rel=0.01)
    assert known.active == pytest.approx(MODELS[name].active * 1e9, rel=0.02)
    assert known.weights == 2 * known.parameters
    assert (known.hidden, known.heads, known.width) == (
        MODELS[name].hidden,
        MODELS[name].heads,
        MODELS[name].heads * 256,
    )


def test_weight_files_say_what_weights_take_and_how_many_parameters_an_unknown_family_has() -> None:
    assert found(QWEN3_8B, 17_000_000_000).weights == 17e9
    assert found(QWEN3_8B | {"model_type": "new"}, 17_000_000_000).parameters == 8.5e9
    with pytest.raises(InvalidSpec, match="--fact parameters=… --fact weights=…"):
        found(QWEN3_8B | {"model_type": "new"})


@pytest.mark.parametrize(
    ("files", "taken", "doubted"),
    [
        (0, 16.38e9, False),
        (16_000_000_000, 16e9, False),
        (32_760_000_000, 32.76e9, True),
        (4_000_000_000, 16.38e9, True),
    ],
)
def test_files_that_do_not_fit_the_parameters_are_doubted_and_the_larger_figure_counts(
    files: int, taken: float, doubted: bool
) -> None:
    known = found(QWEN3_8B, files)
    assert known.weights == pytest.approx(taken, rel=0.001)
    [entry] = [entry for entry in known.inputs if entry.name == "weights"]
    assert entry.basis == ("assumed" if doubted else "specified")
    wanted = f"the files here tell {files / 1e9:.4g} GB, and the parameters at 2 bytes each take 16.38 GB"
    assert entry.caution.startswith(wanted) if doubted else not entry.caution
    [stated] = [entry for entry in stated_by(files, weights=17e9).inputs if entry.name == "weights"]
    assert (stated.basis, stated.caution) == ("given", "")


def test_files_that_hold_less_than_the_experts_do_not_tell_the_number_of_parameters() -> None:
    experts = QWEN3_30B | {"model_type": "new"}
    assert found(experts, 61_000_000_000).parameters == 30.5e9
    with pytest.raises(InvalidSpec, match="does not tell parameters: state them: --fact parameters=…"):
        found(experts, 4_000_000_000)


def test_quantized_files_are_doubted_only_where_they_are_twice_as_large_or_small() -> None:
    awq = QWEN3_8B | {"quantization_config": {"quant_method": "awq"}}
    assert found(awq, 6_100_000_000).weights == 6.1e9
    assert found(awq, 16_400_000_000).inputs[1].caution


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({}, None),
        ({"max_position_embeddings": 32768}, 32768),
        ({"max_position_embeddings": 32768, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 131072),
        ({"max_position_embeddings": 32768, "rope_parameters": {"rope_type": "yarn", "factor": 4}}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 32768, "model_max_length": 65536}, 65536),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "linear", "factor": None}}, 32768),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            131072,
        ),
    ],
)
def test_scaled_positions_make_the_longest_context_longer(config: dict[str, Any], longest: int | None) -> None:
    assert counted.longest(config) == longest


@pytest.mark.parametrize(
    ("uri", "each", "eight"),
    [
        ("hf://Qwen/Qwen3-32B", 2, False),
        ("hf://Qwen/Qwen3-32B-FP8", 1, True),
        ("hf://Qwen/Qwen3-32B-AWQ", 0.6, False),
        ("hf://deepseek-ai/DeepSeek-V3", 1, True),
    ],
)
def test_a_variant_has_fewer_bits(uri: str, each: float, eight: bool) -> None:
    known = model(uri)
    assert known.weights == pytest.approx(each * known.parameters)
    assert known.eight_bits is eight


def test_weights_that_vllm_makes_eight_bits_of_take_a_byte_each() -> None:
    facts = lookup("hf://Qwen/Qwen3-8B")
    assert facts is not None
    known = resolve("hf://Qwen/Qwen3-8B", facts, KVSettings(), quantization="fp8")
    assert known.weights == known.parameters
    assert known.eight_bits


def test_states_of_recurrent_layers_are_counted_once_a_request_and_their_tokens_keep_nothing() -> None:
    known = found(QWEN3_NEXT, 160_000_000_000)
    assert known.kv_token == 12 * 2 * 2 * 256 * 2
    assert known.fixed == 36 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)


def test_layers_with_a_window_keep_no_more_than_it() -> None:
    known = found(SLIDING, 16_000_000_000)
    assert known.kv_token == 6 * 2 * 8 * 128 * 2
    assert known.fixed == 30 * 1024 * 2 * 8 * 128 * 2


def test_windows_that_are_not_known_count_as_if_every_token_were_kept_and_this_is_said() -> None:
    known = model("hf://openai/gpt-oss-20b")
    assert known.kv_token == 24 * 2 * 8 * 64 * 2
    assert [(entry.basis, bool(entry.caution)) for entry in known.inputs if "at most" in entry.text] == [
        ("assumed", True)
    ]


def test_what_a_model_does_not_tell_is_said() -> None:
    stated = ModelFacts("attention", layers=32, kv_heads=8, head_dim=128, source="stated")
    sizes = Given(parameters=7e9, weights=14e9, hidden=4096, heads=32)
    known = resolve("hf://some/model", stated, KVSettings(), given=sizes)
    said = {entry.name: entry.replace for entry in known.inputs if entry.caution}
    assert said == {
        "parameters of a token": "--fact activeParameters=…",
        "longest context": "--max-model-len",
    }
    known = model("hf://google/gemma-3-27b-it")
    assert [entry.name for entry in known.inputs if entry.caution] == ["KV of a token"]
    # Its publisher says that it has no experts.
    assert [entry.name for entry in found(QWEN3_8B, parameters=8e9).inputs if entry.caution] == []


def test_a_recurrent_model_without_its_configuration_is_asked_about() -> None:
    with pytest.raises(InvalidSpec, match="--fact kvBytesPerToken=… --fact stateBytes=…"):
        model("hf://Qwen/Qwen3-Next-80B-A3B-Instruct")


def test_what_is_not_known_is_named_at_once_with_the_way_to_state_it() -> None:
    with pytest.raises(InvalidSpec) as refused:
        resolve("hf://some/model", ModelFacts(), KVSettings())
    [fault] = refused.value.faults
    for fact in ("parameters", "weights", "hidden", "heads", "kind", "layers", "kvHeads", "headDim"):
        assert f"--fact {fact}=…" in str(fault)


def test_what_is_stated_wins_and_is_marked() -> None:
    facts = lookup("hf://Qwen/Qwen3-8B")
    assert facts is not None
    given = Given(parameters=9e9, weights=1e10, kv_token=1000, state=64)
    known = resolve("hf://Qwen/Qwen3-8B", facts, KVSettings(), given=given)
    assert (known.parameters, known.active, known.weights, known.kv_token, known.fixed) == (9e9, 9e9, 1e10, 1000, 64)
    bases = {entry.name: entry.basis for entry in known.inputs}
    assert bases["parameters"] == bases["weights"] == bases["KV of a token"] == "given"
    assert bases["parameters of a token"] == "assumed"
    with pytest.raises(InvalidSpec, match="activeParameters"):
        resolve("hf://Qwen/Qwen3-8B", facts, KVSettings(), given=Given(active=9e9))


def test_a_type_of_kv_whose_width_is_not_known_is_asked_about() -> None:
    with pytest.raises(InvalidSpec, match=r"kvBytesPerToken \(KV of type turbo\)"):
        model(dtype="turbo")
    assert model(dtype="fp8").kv_token * 2 == model().kv_token


@pytest.mark.parametrize(
    ("uri", "sizes"),
    [
        ("hf://Qwen/Qwen3-8B", (1, 2, 4, 8)),
        ("hf://Qwen/Qwen2.5-7B", (1, 2, 4)),
        ("hf://Qwen/Qwen2.5-0.5B", (1, 2)),
        ("hf://deepseek-ai/DeepSeek-V3", (1, 2, 4, 8)),
    ],
)
def test_tensor_sizes_divide_the_heads(uri: str, sizes: tuple[int, ...]) -> None:
    assert model(uri).tensors(8) == sizes
    assert model(uri).tensors(2) == sizes[:2]


def test_experts_whose_number_in_use_is_not_told_leave_it_open() -> None:
    assert counted.idle_parameters({"num_experts": 8}) is None
    assert counted.idle_parameters(QWEN3_8B) == 0
