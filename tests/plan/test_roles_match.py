"""What must match between the roles comes from one profile, which names the revision."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import edited, faults, pair, render

from kvserving_operator import connectors
from kvserving_operator.plan.types import Site

MATCHING = [
    "--model",
    "--revision",
    "--block-size",
    "--kv-cache-dtype",
    "--prefix-caching-hash-algo",
    "--dtype",
    "--attention-backend",
    "--disable-hybrid-kv-cache-manager",
    "--no-disable-hybrid-kv-cache-manager",
    "--speculative-config",
    "--served-model-name",
]
FULL = pair(
    prefill={"parallelism": {"tensor": 2}, "args": ["--max-num-batched-tokens", "16384"]},
    model={"uri": "hf://Qwen/Qwen3-8B", "revision": "abc"},
    engine={"kv": {"blockSize": 32, "dtype": "fp8", "hybrid": "enabled"}, "args": ["--dtype", "float16"]},
    cache={"l1": {"size": "4Gi"}},
    transfer={"stagingMemory": "512Mi"},
)


@pytest.mark.parametrize("flag", MATCHING)
def test_matching_flags_are_equal_on_both_roles(flag: str) -> None:
    plan = render(FULL)
    assert plan.prefill.flag(flag) == plan.decode.flag(flag)


def test_image_is_equal_on_both_roles() -> None:
    plan = render(FULL)
    assert plan.prefill.container["image"] == plan.decode.container["image"]


def test_parallelism_and_batching_are_free_per_role() -> None:
    plan = render(FULL)
    assert plan.prefill.flag("--tensor-parallel-size") == "2"
    assert plan.decode.flag("--tensor-parallel-size") == "1"
    assert plan.prefill.flag("--max-num-batched-tokens") == "16384"


@pytest.mark.parametrize("flag", ["--dtype", "--attention-backend", "--quantization", "--tokenizer", "--chat-template"])
def test_a_matching_flag_on_one_role_is_refused(flag: str) -> None:
    report = faults(pair(decode={"args": [flag, "x"]}))
    assert f"spec.decode.args[0]: {flag} must be equal in both roles" in report


def test_prefix_caching_switched_off_on_one_role_is_refused() -> None:
    assert "--enable-prefix-caching" in faults(pair(prefill={"args": ["--no-enable-prefix-caching"]}))


def test_the_runner_of_one_role_is_refused() -> None:
    env = [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]
    assert "spec.prefill.env" in faults(pair(prefill={"env": env}))


def test_one_connector_without_hybrid_memory_switches_it_off_on_both() -> None:
    plan = render(pair(cache={"l1": {"size": "4Gi"}, "connectors": [{"name": "LMCacheMPConnector", "weight": 1}]}))
    assert [engine.flag("--disable-hybrid-kv-cache-manager") for engine in plan.engines] == ["true", "true"]


def test_state_layout_is_set_on_both_roles() -> None:
    assert [e.env["VLLM_SSM_CONV_STATE_LAYOUT"] for e in render(pair()).engines] == ["DS", "DS"]


@pytest.mark.parametrize(
    ("prefill", "decode", "refused"), [(8, 2, True), (8, 4, True), (4, 2, False), (8, 8, False), (2, 8, False)]
)
def test_replicated_heads_need_as_many_decode_ranks(prefill: int, decode: int, refused: bool) -> None:
    spec = pair(
        model={"uri": "hf://Qwen/Qwen3-30B-A3B"},
        prefill={"parallelism": {"tensor": prefill}},
        decode={"parallelism": {"tensor": decode}},
    )
    assert ("KV heads" in faults(spec)) is refused


def test_latent_attention_is_replicated_by_design() -> None:
    spec = pair(model={"uri": "hf://deepseek-ai/DeepSeek-V3"}, prefill={"parallelism": {"tensor": 8}})
    assert faults(spec) == ""


NEW_REVISION = {
    "model.uri": "hf://Qwen/Qwen3-32B",
    "model.revision": "def",
    "engine.version": "0.30.0",
    "engine.image": "mirror/vllm:v0.33.0",
    "engine.device": "cpu",
    "engine.args": ["--dtype", "bfloat16"],
    "engine.kv.blockSize": 64,
    "engine.kv.dtype": "fp8_e5m2",
    "engine.kv.hybrid": "disabled",
    "engine.kv.hashSeed": "7",
    # Both roles are divided alike then, and stage their transfers.
    "decode.parallelism": {"tensor": 2},
}
SAME_REVISION: dict[str, Any] = {
    "model.name": "other",
    "model.cache": {"size": "10Gi"},
    "engine.args": ["--dtype", "float16", "--max-num-seqs", "5"],
    "prefill.replicas": 9,
    "decode.parallelism": {"tensor": 4},
    "decode.resources": {"limits": {"memory": "900Gi"}},
    "decode.drainTimeout": "1m",
    "cache.l1.size": "8Gi",
    "cache.l2": {"size": "8Gi"},
    "cache.connectors": [{"name": "TieredOffloadConnector", "weight": 5}],
    "transfer.lease": "60s",
    "router.replicas": 4,
    "rollout.maxSurge": 2,
    "suspend": True,
}


@pytest.mark.parametrize("path", NEW_REVISION)
def test_a_matching_field_makes_a_new_revision(path: str) -> None:
    assert render(edited(FULL, path, NEW_REVISION[path])).plan.revision != render(FULL).plan.revision


def test_a_connector_of_another_protocol_makes_a_new_revision_and_another_image_of_it_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = {**FULL, "prefill": None}
    first, unpaired = render(FULL).plan.revision, render(alone).plan.revision
    other = Site("cluster", connector_image="mirror.example/connector:2")
    assert render(FULL, site=other).plan.revision == first
    monkeypatch.setattr(connectors, "TRANSFER_PROTOCOL", 2)
    assert render(FULL).plan.revision != first
    assert render(alone).plan.revision == unpaired, "an engine without a peer is understood by itself"


def test_kvcached_makes_a_new_revision() -> None:
    plain, elastic = (
        render(pair(engine={"version": "0.30.0"}, kvcached={"enabled": on})).plan.revision for on in (False, True)
    )
    assert plain != elastic


@pytest.mark.parametrize("path", SAME_REVISION)
def test_other_fields_keep_the_revision(path: str) -> None:
    assert render(edited(FULL, path, SAME_REVISION[path])).plan.revision == render(FULL).plan.revision


@pytest.mark.parametrize(("field", "role"), [("prefill", "decode"), ("decode", "prefill")])
def test_a_change_of_one_role_leaves_the_other_as_it_is(field: str, role: str) -> None:
    before, after = render(FULL), render(edited(FULL, f"{field}.resources", {"limits": {"memory": "900Gi"}}))
    assert after.role(role).deployment == before.role(role).deployment
    assert after.role(field).deployment != before.role(field).deployment


def test_the_revision_is_in_labels_selectors_and_environment() -> None:
    plan = render(pair())
    for engine in plan.engines:
        revision = plan.plan.revision
        assert engine.template["metadata"]["labels"]["kvserving.dev/revision"] == revision
        assert engine.deployment["spec"]["selector"]["matchLabels"]["kvserving.dev/revision"] == revision
        assert engine.env["KVSERVING_REVISION"] == revision
        assert engine.name.endswith(revision[:8])


def test_facts_that_become_known_change_no_engine() -> None:
    from kvserving_operator.model_facts import ModelFacts

    spec = pair(model={"uri": "hf://example-org/unknown"})
    known = render(spec, facts=ModelFacts("recurrent", 24, 2, 128, 8192, source="observed"))
    assert known.plan.objects == render(spec).plan.objects


def test_one_seed_and_algorithm_for_all_engines() -> None:
    """1.7"""
    plan = render(pair(engine={"kv": {"hashSeed": "42"}}))
    assert [engine.env["PYTHONHASHSEED"] for engine in plan.engines] == ["42", "42"]
    assert {engine.flag("--prefix-caching-hash-algo") for engine in plan.engines} == {"sha256_cbor"}
    assert render(pair()).prefill.env["PYTHONHASHSEED"] == "0"
