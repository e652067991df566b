"""Each invalid case that the plan must refuse names field, value, reason and way out."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests import specs
from tests.plan.support import faults, pair

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.load import inspect
from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.plan.planning import check, plan

PLAN_CASES = specs.refused("plan")


@pytest.mark.parametrize("case", PLAN_CASES, ids=[case.path.stem for case in PLAN_CASES])
def test_plan_refuses_and_says_what_the_case_demands(case: specs.Refused) -> None:
    serving = KVServing.model_validate(yaml.safe_load(case.text))
    report = "\n".join(str(fault) for fault in (*inspect(case.text, strict=True).faults, *check(serving)))
    assert case.missing_from(report) == ()
    with pytest.raises(InvalidSpec) as raised:
        plan(serving)
    assert raised.value.faults == check(serving)


def test_all_faults_are_reported_at_once() -> None:
    spec = pair(cache={"l1": {"size": "64Gi"}}, router={"type": "smg"}, kvcached={"enabled": True})
    spec["engine"] = {"version": "0.33.0", "args": ["--host=0.0.0.0"]}
    spec["model"] = {"uri": "gs://x/y", "loras": [{"name": "a", "uri": "hf://o/a"}]}
    spec["prefill"] |= {"nodes": 2, "parallelism": {"tensor": 2}}
    report = faults(spec)
    for path in (
        "spec.kvcached.enabled",
        "spec.engine.args",
        "spec.model.uri",
        "spec.router.type",
        "spec.prefill.nodes",
    ):
        assert path in report


OTHERS: list[tuple[dict[str, Any], list[str]]] = [
    (
        {
            "prefill": {"nodes": 2, "parallelism": {"tensor": 2}},
            "kvcached": {"enabled": True},
            "engine": {"version": "0.30.0"},
        },
        ["spec.prefill.nodes", "2: kvcached", "set it to 1"],
    ),
    (
        {"decode": {"parallelism": {"pipeline": 2}}},
        ["spec.decode.parallelism.pipeline", "2: NixlConnector", "leave out spec.prefill"],
    ),
    (
        {"prefill": {"nodes": 2, "parallelism": {"tensor": 8}, "resources": {"limits": {"nvidia.com/gpu": 8}}}},
        ["spec.prefill.resources.limits", "8 differs", "needs 4 in each of 2 pods"],
    ),
    ({"engine": {"version": "0.23.0"}}, ["spec.engine.version", "0.23.0", "0.24.0"]),
    ({"engine": {"device": "cpu"}, "kvcached": {"enabled": True}}, ["spec.kvcached.enabled", "cpu"]),
    ({"model": {"uri": "gs://bucket/model"}}, ["spec.model.uri", "gs://bucket/model", "hf://owner/name"]),
    (
        {"router": {"type": "vllm-router"}, "model": {"uri": "hf://o/a", "loras": [{"name": "a", "uri": "hf://o/b"}]}},
        ["spec.model.loras[0].name", "'a'", "spec.model.uri", "rename the adapter"],
    ),
    ({"model": {"uri": "file://models/x"}}, ["spec.model.uri", "file:///path"]),
    (
        {"engine": {"kv": {"hybrid": "disabled"}}, "model": {"uri": "hf://Qwen/Qwen3-Next-80B-A3B-Instruct"}},
        ["spec.engine.kv.hybrid", "recurrent"],
    ),
    (
        {"transfer": {"onFailure": "recompute"}, "model": {"uri": "hf://google/gemma-3-12b-it"}},
        ["spec.transfer.onFailure", "several cache groups", "slidingWindow"],
    ),
    ({"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, ["spec.rollout.maxSurge", "Recreate"]),
    ({"cache": {"l2": {"type": "external"}}}, ["spec.cache.l2.url"]),
    ({"cache": {"l2": {"type": "filesystem"}}}, ["spec.cache.l2.size"]),
    ({"cache": {"l2": {"type": "external", "url": "redis://user:pass@host:6379"}}}, ["spec.cache.l2.url", "secretRef"]),
    (
        {"cache": {"connectors": [{"name": "NoSuchConnector", "weight": 1}]}},
        ["spec.cache.connectors[0].name", "NoSuchConnector"],
    ),
    (
        {"cache": {"connectors": [{"name": "NixlConnector", "weight": 1}, {"name": "NixlConnector", "weight": 2}]}},
        ["spec.cache.connectors", "twice"],
    ),
    (
        {"cache": {"l1": {"size": "4Gi"}, "connectors": [{"name": "TieredOffloadConnector", "weight": 9_000_000}]}},
        ["spec.cache.connectors", "TieredOffloadConnector", "highest"],
    ),
    ({"router": {"type": "vllm-router", "policy": "powerOfTwo"}}, ["spec.router.policy", "cacheAware"]),
    ({"ratio": {"min": "2:1"}}, ["spec.ratio.min", "2:1"]),
    ({"ratio": {"min": "2:1"}, "prefill": {}}, ["spec.ratio.min", "1:1"]),
    ({"ratio": {"max": "1:2"}, "decode": {}}, ["spec.ratio.max", "1:1"]),
    (
        {
            "ratio": {"min": "1:2"},
            "prefill": {"autoscaling": {"max": 2}},
            "decode": {"autoscaling": {"min": 6, "max": 8}},
        },
        ["spec.ratio.min", "1:2 is out of reach: 2 prefill engines at most, 6 decode at least"],
    ),
    (
        {"ratio": {"max": "1:2"}, "prefill": {"replicas": 3}, "decode": {"autoscaling": {"max": 5}}},
        ["spec.ratio.max", "1:2 is out of reach: 3 prefill engines at least, 5 decode at most"],
    ),
    ({"prefill": {"args": ["--port", "9000"]}}, ["spec.prefill.args", "--port", "spec.engine.args"]),
    ({"engine": {"args": ["--port", "5605"]}}, ["--port 5605", "side channels"]),
    (
        {"prefill": {"resources": {"limits": {"nvidia.com/gpu": 4}}}},
        ["spec.prefill.resources.limits", "4", "spec.prefill.parallelism"],
    ),
    (
        {"engine": {"env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:True"}]}},
        ["spec.engine.env", "expandable_segments"],
    ),
    (
        {
            "engine": {"version": "0.30.0", "env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]},
            "kvcached": {"enabled": True},
        },
        ["VLLM_USE_V2_MODEL_RUNNER", "V2"],
    ),
    ({"decode": {"env": [{"name": "UCX_TLS", "value": "tcp"}]}}, ["spec.decode.env", "UCX_TLS", "spec.engine.env"]),
    (
        {"decode": {"args": ["--attention-backend", "FLASHINFER"]}},
        ["spec.decode.args", "--attention-backend", "spec.engine.args"],
    ),
]


@pytest.mark.parametrize(("spec", "words"), OTHERS, ids=[words[0] + " " + words[-1] for _, words in OTHERS])
def test_refusal_names_field_and_way_out(spec: dict[str, object], words: list[str]) -> None:
    report = faults(pair(**spec))
    assert [word for word in words if word not in report] == []


def test_recompute_is_allowed_for_one_cache_group() -> None:
    assert faults(pair(transfer={"onFailure": "recompute"})) == ""


def test_ngram_speculation_may_be_on_one_role() -> None:
    config = '{"method":"ngram","num_speculative_tokens":3}'
    assert faults(pair(decode={"args": ["--speculative-config", config]})) == ""


@pytest.mark.parametrize(
    "config", ['{"method":"eagle","model":"o/ngram-draft"}', '{"model":"o/ngram"}', '{"method":"mtp"}', "ngram"]
)
def test_speculation_with_a_draft_model_on_one_role_is_refused(config: str) -> None:
    report = faults(pair(prefill={"args": [f"--speculative-config={config}"]}))
    assert report.startswith(
        "spec.prefill.args[0]: --speculative-config with a draft model must be equal in both roles"
    )


@pytest.mark.parametrize(
    ("args", "refused"),
    [
        (["--spec-method=ngram", "--spec-tokens=3"], False),
        (["--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens=3"], False),
        (["--spec-method=eagle"], True),
        (["--spec-model", "o/draft"], True),
        (["-sc", '{"method":"eagle"}'], True),
        (["--speculative-c", '{"method":"eagle"}'], True),
    ],
)
def test_speculation_is_found_in_each_form(args: list[str], refused: bool) -> None:
    assert ("must be equal in both roles" in faults(pair(decode={"args": args}))) is refused


def test_speculation_on_both_roles_alike_is_allowed() -> None:
    args = ['--speculative-config={"method":"eagle"}']
    assert faults(pair(prefill={"args": args}, decode={"args": args})) == ""
    assert faults(pair(engine={"args": args})) == ""


@pytest.mark.parametrize(
    ("cache", "told"),
    [
        ({"l1": {"size": 1}}, "spec.cache.l1.size: 1 holds no chunk of a model's KV: give it some GiB"),
        ({"l1": {"size": "8Mi"}}, "spec.cache.l1.size: 8Mi holds no chunk"),
        ({"l2": {}}, "spec.cache.l2: names no store: set size for a Valkey that is deployed, or type"),
        (
            {"l2": {"size": "1Gi", "replicas": 32}},
            "spec.cache.l2.size: 1Gi is the size of all 32 shards together and leaves less than 64Mi for each of them: "
            "give it 2Gi at least, or fewer replicas",
        ),
        ({"l2": {"size": "32Mi"}}, "spec.cache.l2.size: 32Mi is less than 64Mi: give it 64Mi at least"),
    ],
)
def test_a_tier_that_would_hold_nothing_is_refused(cache: dict[str, Any], told: str) -> None:
    assert told in faults(pair(cache=cache))


@pytest.mark.parametrize(
    ("staging", "told"),
    [
        ("512", "512 of each rank holds no block of KV, and a block of this model takes 2304Ki: give it many times"),
        ("1Ki", "1Ki of each rank holds no block of KV"),
        (
            "2Mi",
            "2Mi of each rank holds no block of KV, and a block of this model takes 2304Ki: give it many",
        ),
        ("3Mi", ""),
        ("0", ""),
    ],
)
def test_a_staging_pool_that_would_hold_no_block_is_refused(staging: str, told: str) -> None:
    report = faults(pair(transfer={"stagingMemory": staging}))
    assert told in report
    assert report.startswith("spec.transfer.stagingMemory: ") is bool(told)


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_staging_is_refused_where_the_engines_version_has_not_what_it_stands_on(device: str) -> None:
    def report(version: str, **more: Any) -> str:
        engine = {"version": version, "device": device}
        return faults({**pair(engine=engine, transfer={"stagingMemory": "512Mi"}), **more})

    assert report("0.29.0") == ""
    assert report("0.28.0") == (
        "spec.transfer.stagingMemory: 512Mi: vLLM 0.28.0 (spec.engine.version) has not what staging stands on, and "
        "transfers would not be staged: use 0.29.0 or newer, or set it to 0"
    )
    assert report("0.28.0", transfer={"stagingMemory": "0"}) == ""
    assert report("0.28.0", prefill=None) == ""
    assert "stagingMemory" not in report("0.20.0"), "one fault for a version that does not work at all"


def test_the_least_staging_pool_of_an_unknown_model_is_a_mebibyte() -> None:
    def report(size: str) -> str:
        return faults(pair(model={"uri": "hf://nobody/knows"}, transfer={"stagingMemory": size}))

    assert report("1023Ki") == (
        "spec.transfer.stagingMemory: 1023Ki of each rank holds no block of KV: give it some hundred Mi (1Mi at "
        "least), or 0, which stages nothing"
    )
    assert report("1Mi") == ""


def test_staging_that_leaves_a_cpu_engine_no_memory_is_refused_with_its_field() -> None:
    def report(limit: str, device: str = "cpu") -> str:
        role = {"resources": {"limits": {"memory": limit}}}
        return faults(pair(prefill=role, engine={"device": device}, transfer={"stagingMemory": "8Gi"}))

    assert report("10Gi") == (
        "spec.transfer.stagingMemory: 8Gi does not fit into spec.prefill.resources.limits.memory 10Gi: 2.5Gi engine + "
        "8Gi staging. Raise the limit to 11Gi or stage less"
    )
    assert (report("11Gi"), report("1Gi", "gpu")) == ("", "")


def test_a_tier_that_is_switched_off_is_none() -> None:
    assert faults(pair(cache={"l1": {"size": "16Mi"}, "l2": {"type": "none"}})) == ""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NixlConector", "NixlConector is neither a connector of ours nor one that vLLM registers"),
        ("workercacheconnector", "did you mean WorkerCacheConnector?"),
        ("lmcacheconnectorv1", "did you mean LMCacheConnectorV1?"),
        ("NixlConector", "did you mean NixlConnector?"),
    ],
)
def test_a_misspelt_connector_is_told_the_nearest_name(name: str, told: str) -> None:
    report = faults(pair(cache={"connectors": [{"name": name, "weight": 3}]}))
    assert report.startswith("spec.cache.connectors[0].name: ")
    assert told in report


@pytest.mark.parametrize(
    ("connectors", "told"),
    [
        (
            [{"name": "OffloadingConnector", "weight": 2}, {"name": "NixlConnector", "weight": 2}],
            "spec.cache.connectors[1].weight: 2: NixlConnector's weight 2 must be the highest, above "
            "OffloadingConnector, or decode leaves the KV that prefill holds for it and may recompute: "
            "remove the entry of NixlConnector, whose default is 1000000",
        ),
        (
            [{"name": "OffloadingConnector", "weight": 2_000_000}],
            "spec.cache.connectors[0].weight: 2000000: NixlConnector's weight 1000000 must be the highest, above "
            "OffloadingConnector, or decode leaves the KV that prefill holds for it and may recompute: "
            "give OffloadingConnector less",
        ),
    ],
)
def test_a_weight_above_that_of_the_transfer_names_the_entry_and_the_way_out(
    connectors: list[dict[str, Any]], told: str
) -> None:
    assert faults(pair(cache={"connectors": connectors})) == told


@pytest.mark.parametrize("kind", ["slidingWindow", "recurrent"])
def test_recompute_for_several_cache_groups_is_told_what_to_use(kind: str) -> None:
    spec = pair(transfer={"onFailure": "recompute"}, model={"uri": "hf://a/b", "facts": {"kind": kind}})
    report = faults(spec)
    assert report.startswith("spec.transfer.onFailure: recompute corrupts models with several cache groups")
    assert report.endswith(f"(this one: {kind}): use fail")


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (pair(engine={"args": ["--max-num-seqs=8", "--kv-tr={}"]}), "spec.engine.args[1]"),
        (pair(engine={"args": ["--max-num-seqs", "8", "--load=x", "--hos=1"]}), "spec.engine.args[3]"),
        (pair(engine={"args": ["--max-num-seqs=8", "--port=5600"]}), "spec.engine.args[1]"),
        (pair(prefill={"args": ["--max-num-seqs=8", "--port=8100"]}), "spec.prefill.args[1]"),
        (pair(decode={"args": ["--max-num-seqs=8", "--port=8100"]}), "spec.prefill.args"),
    ],
)
def test_what_is_wrong_with_arguments_is_told_by_the_element(spec: dict[str, Any], path: str) -> None:
    assert {line.split(": ")[0] for line in faults(spec).splitlines()} == {path}
