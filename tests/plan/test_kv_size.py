"""Bytes of a block in the memory of one rank."""

from __future__ import annotations

from typing import Any

import pytest

from kvserving_operator.api.v1alpha1 import KVSettings, Parallelism
from kvserving_operator.kv_size import block_bytes
from kvserving_operator.model_facts import ModelFacts, lookup

LLAMA = lookup("hf://meta-llama/Llama-3.1-8B")
DEEPSEEK = lookup("hf://deepseek-ai/DeepSeek-V3")


def size(facts: ModelFacts | None, *, device: Any = "gpu", kv: Any = None, **parallel: int) -> int | None:
    assert facts is not None
    return block_bytes(facts, KVSettings(**(kv or {})), Parallelism.model_validate(parallel), device)


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    assert size(LLAMA) == 16 * 32 * 2 * 8 * 128 * 2
    assert size(LLAMA, device="cpu") == 8 * 16 * 32 * 2 * 8 * 128 * 2
    assert size(LLAMA, kv={"block_size": 64}) == 4 * 16 * 32 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("dtype", "bytes_each"), [("auto", 2), ("bfloat16", 2), ("float32", 4), ("fp8_e4m3", 1), ("fp8", 1)]
)
def test_the_type_of_the_cache_counts(dtype: str, bytes_each: int) -> None:
    assert size(LLAMA, kv={"dtype": dtype}) == 16 * 32 * 2 * 8 * 128 * bytes_each


@pytest.mark.parametrize(
    ("parallel", "part"),
    [
        ({"tensor": 4}, 4),
        ({"tensor": 16}, 8),
        ({"pipeline": 4}, 4),
        ({"tensor": 2, "pipeline": 2}, 4),
        ({"data": 8}, 1),
    ],
)
def test_a_rank_holds_its_layers_and_heads_and_copies_of_heads_beyond_their_number(
    parallel: dict[str, int], part: int
) -> None:
    whole = size(LLAMA)
    assert whole is not None
    assert size(LLAMA, **parallel) == whole // part


def test_latent_attention_is_on_every_rank_once_and_whole() -> None:
    assert size(DEEPSEEK) == size(DEEPSEEK, tensor=8) == 16 * 61 * 576 * 2
    assert size(DEEPSEEK, pipeline=2) == 16 * 31 * 576 * 2
    assert size(DEEPSEEK, device="cpu", kv={"block_size": 128}) == 16 * 61 * 576 * 2


@pytest.mark.parametrize(
    "facts",
    [
        ModelFacts(),
        lookup("hf://google/gemma-3-4b"),
        lookup("hf://tiiuae/Falcon-H1-7B"),
        ModelFacts("attention", None, 8, 128),
        ModelFacts("attention", 32, None, 128),
        ModelFacts("attention", 32, 8, None),
    ],
)
def test_what_the_facts_do_not_tell_is_not_guessed(facts: ModelFacts) -> None:
    assert size(facts) is None


def test_a_type_of_unknown_width_is_not_guessed() -> None:
    assert size(LLAMA, kv={"dtype": "turboquant_k8v4"}) is None
