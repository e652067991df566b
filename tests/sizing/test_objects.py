"""A sizing put into an object: what changes, what stays, what is said about it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import yaml
from tests.sizing.support import QWEN, sizing

from kvserving_operator.api import load
from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.v1alpha1 import KVServing, StatedFacts
from kvserving_operator.plan import check_limits
from kvserving_operator.plan.planning import check
from kvserving_operator.sizing import objects
from kvserving_operator.sizing.demand import Limits
from kvserving_operator.sizing.objects import Changes


def serving(spec: str) -> KVServing:
    head = "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: mine, namespace: prod}\n"
    return load.load(f"{head}spec:\n  model: {{uri: 'hf://Qwen/Qwen3-8B'}}\n{spec}", strict=True)


def put(spec: str, **asked: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    return objects.sized(serving(spec), sizing(**asked))


def test_what_a_sizing_does_not_know_stays() -> None:
    spec = "  engine: {args: ['--max-num-seqs=64']}\n  decode: {drainTimeout: 1h}\n  router: {type: vllm-router}\n"
    made, notices = put(spec, rate=20)
    assert made["metadata"] == {"name": "mine", "namespace": "prod"}
    assert made["spec"]["engine"] == {"args": ["--max-num-seqs=64"]}
    assert made["spec"]["router"] == {"type": "vllm-router"}
    assert made["spec"]["decode"]["drainTimeout"] == "1h"
    assert made["spec"]["decode"]["replicas"] == sizing(rate=20).decode.replicas > 1
    assert notices == ("the object has no spec.prefill: the sizing adds it",)


def test_numbers_that_others_would_own_give_way_and_this_is_said() -> None:
    spec = (
        "  prefill: {autoscaling: {max: 3}}\n"
        "  decode: {nodes: 2, parallelism: {tensor: 16}, resources: {limits: {nvidia.com/gpu: 8}}}\n"
    )
    made, notices = put(spec)
    assert made["spec"]["prefill"] == {"replicas": 1}
    assert made["spec"]["decode"] == {"replicas": 1, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    assert [notice.split()[0] for notice in notices] == ["spec.prefill.autoscaling", "spec.decode.nodes"]
    assert check(load.load(made, strict=True)) == ()


def test_tiers_stay_as_they_are_unless_they_are_sized() -> None:
    spec = "  prefill: {}\n  cache: {l1: {size: 7Gi, policy: arc}, l2: {size: 9Gi}}\n"
    assert put(spec)[0]["spec"]["cache"] == {"l1": {"size": "7Gi", "policy": "arc"}, "l2": {"size": "9Gi"}}
    made, notices = put(spec, reused=0.5, l1_horizon=60.0, l2_horizon=0.0)
    assert made["spec"]["cache"] == {"l1": {"size": "42Gi", "policy": "arc"}}
    assert notices == ("spec.cache.l2 is left out: --l2-horizon is 0",)


def test_a_store_of_others_is_not_sized() -> None:
    spec = "  prefill: {}\n  cache: {l2: {type: external, url: 'redis://cache:6379'}}\n"
    made, notices = put(spec, l2_horizon=60.0)
    assert made["spec"]["cache"]["l2"] == {"type": "external", "url": "redis://cache:6379"}
    assert notices == ("spec.cache.l2 stays as it is: the operator does not size a store of type external",)


def test_a_store_that_was_switched_off_is_switched_on() -> None:
    made, _ = put("  prefill: {}\n  cache: {l2: {type: none}}\n", l2_horizon=60.0)
    assert set(made["spec"]["cache"]["l2"]) == {"size"}


def test_shards_are_as_many_as_reads_need() -> None:
    made, _ = put("  prefill: {}\n", rate=60, reused=0.5, l2_horizon=60.0)
    assert made["spec"]["cache"]["l2"]["replicas"] == 9


def test_options_change_the_object() -> None:
    changes = Changes("other", StatedFacts(kind="attention", layers=36), "fp8", 8000)
    changed = objects.changed(serving("  engine: {args: ['--max-model-len', '9000', '--seed=1']}\n"), changes)
    body = yaml.safe_load(yaml.safe_dump(objects.sized(changed, sizing())[0]))
    assert body["metadata"]["name"] == "other"
    assert body["spec"]["model"]["facts"] == {"kind": "attention", "layers": 36}
    assert body["spec"]["engine"] == {"args": ["--seed=1", "--max-model-len=8000"], "kv": {"dtype": "fp8"}}
    assert objects.longest(changed) == 8000


def test_engine_arguments_bound_the_memory_and_the_batch_of_their_role() -> None:
    given = serving(
        "  engine: {args: ['--gpu-memory-utilization=0.8']}\n"
        "  prefill: {}\n"
        "  decode: {args: ['--max-num-seqs', '32']}\n"
    )
    assert objects.limits(given, "prefill") == Limits(0.8, None)
    assert objects.limits(given, "decode") == Limits(0.8, 32)
    with pytest.raises(InvalidSpec, match=r"spec.decode.args\[0\]: --max-num-seqs needs a whole number"):
        objects.limits(serving("  decode: {args: ['--max-num-seqs=many']}\n"), "decode")


@pytest.mark.parametrize(
    ("spec", "longest"),
    [
        ("  engine: {args: ['--max-model-len=32k']}\n", 32_000),
        ("  engine: {args: ['--max-model-len=32K']}\n", 32_768),
        ("  engine: {args: ['--max-model-len=25.6k']}\n", 25_600),
        ("  prefill: {args: ['--max-model-len=2000']}\n", 2_000),
        ("  engine: {args: ['--max-model-len=900']}\n  decode: {args: ['--max-model-len=2000']}\n", 900),
        (
            "  engine: {args: ['--max-model-len=900']}\n"
            "  prefill: {args: ['--max-model-len=3000']}\n"
            "  decode: {args: ['--max-model-len=2000']}\n",
            2_000,
        ),
        ("  decode: {}\n", None),
    ],
)
def test_the_longest_context_is_what_both_roles_take(spec: str, longest: int | None) -> None:
    assert objects.longest(serving(spec)) == longest


def test_the_option_replaces_what_the_roles_say() -> None:
    spec = "  prefill: {args: ['--max-model-len=2000', '--seed=1']}\n  decode: {args: ['--max-model-len', '1000']}\n"
    changed = objects.changed(serving(spec), Changes(max_model_len=8000))
    assert objects.longest(changed) == 8000
    made, _ = objects.sized(changed, sizing())
    assert made["spec"]["prefill"]["args"] == ["--seed=1"]
    assert made["spec"]["engine"]["args"] == ["--max-model-len=8000"]
    for wrong in (0, -5, 10**9):
        with pytest.raises(InvalidSpec, match=f"^--max-model-len: {wrong:,} is no length of a context"):
            objects.changed(serving(spec), Changes(max_model_len=wrong))


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("  engine: {args: ['--max-model-len=50000']}\n", "spec.engine.args"),
        ("  prefill: {args: ['--max-model-len=50000']}\n", "spec.prefill.args"),
        ("  engine: {args: ['--max-model-len=9']}\n  decode: {args: ['--max-model-len=50000']}\n", "spec.decode.args"),
    ],
)
def test_a_longer_context_than_vllm_accepts_is_refused(spec: str, path: str) -> None:
    said = rf"^{path}: --max-model-len 50,000 is above 40,960, the longest context of hf://Qwen/Qwen3-8B"
    with pytest.raises(InvalidSpec, match=said):
        objects.within(serving(spec), 40_960, False)
    with pytest.raises(InvalidSpec, match=r"^--max-model-len: 50,000 is above 40,960"):
        objects.within(serving(spec), 40_960, True)
    objects.within(serving(spec), 50_000, False)
    objects.within(serving(spec), None, False)


@pytest.mark.parametrize(
    "spec",
    [
        "  engine: {args: ['--max-model-len=50000', '--hf-overrides={}']}\n",
        "  engine: {args: ['--max-model-len=50000'], env: [{name: VLLM_ALLOW_LONG_MAX_MODEL_LEN, value: '1'}]}\n",
    ],
)
def test_a_longer_context_is_taken_where_the_model_is_overridden(spec: str) -> None:
    objects.within(serving(spec), 40_960, False)


@pytest.mark.parametrize(
    ("flag", "wrong"),
    [
        ("--max-num-seqs", ("nan", "inf", "0.5", "0", "-1", "1_0", "\u0661\u0662", "9" * 500)),
        ("--gpu-memory-utilization", ("nan", "inf", "0", "1.5", "-0.5", "0_9", "1e-400")),
        ("--max-model-len", ("nan", "0", "1.5K", "3_2k", "\u0663k", "32kk", "9" * 500)),
    ],
)
def test_flags_that_are_no_numbers_are_told_with_the_field_that_has_them(flag: str, wrong: tuple[str, ...]) -> None:
    for written in wrong:
        for section in ("engine", "decode"):
            given = serving(f"  {section}: {{args: ['{flag}={written}']}}\n")
            read: Any = objects.longest if flag == "--max-model-len" else partial(objects.limits, role="decode")
            value = r"('[^']*' is none|what is given is not such a value)"
            said = rf"^spec\.{section}\.args\[0\]: {flag} needs a .*, and {value}: write {flag}=.*, or remove the flag$"
            with pytest.raises(InvalidSpec, match=said) as told:
                read(given)
            assert len(str(told.value)) < 400
            assert list(told.value.faults) == list(check_limits.faults(given.spec))


@pytest.mark.parametrize("written", ["auto", "-1"])
def test_a_context_that_vllm_finds_by_itself_is_valid_and_cannot_be_sized_by(written: str) -> None:
    given = serving(f"  decode: {{args: ['--max-model-len={written}']}}\n")
    assert list(check_limits.faults(given.spec)) == []
    objects.within(given, 1, False)
    with pytest.raises(InvalidSpec, match=r"^spec\.decode\.args: --max-model-len '.*' depends on what fits"):
        objects.longest(given)


def test_parallelism_that_is_not_sized_gives_way_and_this_is_said() -> None:
    _, notices = put(
        "  prefill: {parallelism: {tensor: 2, data: 2, pipeline: 1}}\n"
        "  decode: {parallelism: {data: 4, expert: true, pipeline: 2}}\n"
    )
    assert [notice.split()[0] for notice in notices] == [
        "spec.prefill.parallelism.data",
        "spec.decode.parallelism.pipeline",
        "spec.decode.parallelism.data",
        "spec.decode.parallelism.expert",
    ]


def test_devices_of_every_vendor_are_as_many_as_the_tensor_size() -> None:
    given = serving("  prefill: {}\n  decode: {resources: {limits: {amd.com/gpu: 1, rdma/hca: 1}}}\n")
    made, _ = objects.sized(given, sizing("hf://meta-llama/Llama-3.3-70B-Instruct"))
    tensor = made["spec"]["decode"]["parallelism"]["tensor"]
    assert tensor > 1
    assert made["spec"]["decode"]["resources"]["limits"] == {"amd.com/gpu": f"{tensor}", "rdma/hca": "1"}


def test_engines_on_cpus_are_not_sized() -> None:
    with pytest.raises(InvalidSpec, match=r"spec.engine.device: cpu"):
        objects.changed(serving("  engine: {device: cpu}\n"), Changes())


def test_host_memory_is_that_of_the_plan() -> None:
    made, _ = objects.sized(objects.new(QWEN, "tested"), sizing(reused=0.5, l1_horizon=60.0, l2_horizon=60.0))
    prefill, decode = objects.host_lines(made)
    assert (prefill.text, prefill.arithmetic) == ("54.2Gi", "8Gi engine + 42Gi L1 + 4.2Gi 10% of L1")
    assert decode.text == "8Gi"
