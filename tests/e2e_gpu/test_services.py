"""The objects of the GPU lane, which of them are up at once, and what is asked of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e.gpu.models import QWEN3_4B, weights
from e2e.gpu.shapes import GEMMA3, GPU, SHAPES, TINY, TINY_GEMMA3, Shape
from e2e.gpu.variants import VARIANTS, Lane, Variant, groups

from kvserving_operator.api.load import load


def spec(variant: Variant, shape: Shape = GPU) -> dict[str, object]:
    lane = Lane(variant.name, Path("/models/lane"), variant=variant, shape=shape)
    found: dict[str, object] = json.loads(lane.text(variant.name))["spec"]
    return found


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_is_a_valid_object(variant: Variant) -> None:
    text = Lane(variant.name, Path("/models/lane"), variant=variant).text(variant.name)
    assert load(text, strict=True, base_dir=Path("/")).metadata.name == variant.name


def test_only_the_staging_memory_tells_plain_from_staged() -> None:
    plain, staged = spec(VARIANTS["plain"]), spec(VARIANTS["staged"])
    assert plain.pop("transfer") == {"lease": "10s", "stagingMemory": "0"}
    assert staged.pop("transfer") == {"lease": "10s", "stagingMemory": str(512 * 2**20)}
    assert plain == staged


def test_engines_that_share_a_gpu_have_a_fixed_cache_and_those_under_kvcached_none() -> None:
    fixed = {"plain": 34, "staged": 34, "staged-l1": 8, "single": 8, "kvcached": 0, "kvcached-staged": 0}
    for name, size in fixed.items():
        words = Lane(name, Path("/m"), variant=VARIANTS[name]).engine_arguments()
        found = [word for word in words if "memory" in word]
        assert found == ([f"--kv-cache-memory-bytes={size * 2**30}", "--gpu-memory-utilization=0.1"] if size else [])


def test_what_is_timed_on_a_fresh_engine_takes_blocks_that_none_had_before() -> None:
    assert GPU.kv_bytes is not None
    assert (4 * sum(GPU.timed) + 2 * 4000) * GPU.kv_token < GPU.kv_bytes


def test_services_under_kvcached_are_up_alone_and_others_as_many_as_fit() -> None:
    names = ["single", "plain", "staged", "kvcached", "kvcached-staged", "staged-l1"]
    assert groups(names, 2) == [["single", "plain"], ["staged"], ["kvcached"], ["kvcached-staged"], ["staged-l1"]]
    assert groups(names[:3], 1) == [["single"], ["plain"], ["staged"]]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_two_prompts_of_the_crowd_fill_the_staging_memory(shape: Shape) -> None:
    each = shape.slot_tokens * shape.kv_token
    assert 2 * each <= shape.staging < 3 * each
    assert max(*shape.lengths, *shape.timed) * shape.kv_token < shape.large_staging
    assert max(*shape.lengths, *shape.timed, shape.slot_tokens) < shape.context


def test_the_large_model_has_the_weights_of_its_configuration() -> None:
    found = weights(QWEN3_4B)
    assert len(found) == 2 + 36 * 11
    assert found["model.layers.35.self_attn.q_proj.weight"] == (4096, 2560)
    number = 0
    for form in found.values():
        number += form[0] * (form[1] if len(form) > 1 else 1)
    assert 3.6e9 < number < 3.7e9
    assert GPU.kv_token == 2 * 36 * 8 * 128 * 2
    assert TINY.kv_token == 2 * 4 * 2 * 64 * 4
    assert GEMMA3.kv_token == 2 * 34 * 4 * 256 * 2
    assert TINY_GEMMA3.kv_token == 2 * 6 * 2 * 64 * 4


def test_the_page_has_every_variant_and_the_tokens_of_the_crowd() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpu-lane.md").read_text()
    table = page.partition("## Variants")[2].partition("\n## ")[0]
    assert [name for name in VARIANTS if f"`{name}`" not in table] == []
    assert f"each of {GPU.slot_tokens:,} tokens: half of 512Mi" in page
    assert GPU.large_staging // (GPU.slot_tokens * GPU.kv_token) == 20
