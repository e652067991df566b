"""``cache.l1.owner``: which class of tier each role gets, what it is told, and what it cannot do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import edited, faults, pair, render, serving

from kvserving_operator import connectors
from kvserving_operator.engines import catalog
from kvserving_operator.memory import host_memory

GI = 2**30
TIERED, WORKER = "TieredOffloadConnector", "WorkerCacheConnector"
OWNED = {"l1": {"size": "4Gi", "owner": "worker"}}
STORE = {"type": "SharedStoreTier", "urls": ["redis://store:6379"]}
BOTH = ["prefill", "decode"]


def config(spec: dict[str, Any], role: Any, store: Any = STORE) -> dict[str, Any]:
    """The settings of one role, also for objects that the plan refuses as yet."""
    build = catalog.resolve(version="0.33.0", image=None, device="gpu", kvcached=False)
    made = connectors.transfer_config(serving(spec).spec, build, role, store)
    assert made is not None
    return made


def names(spec: dict[str, Any], role: Any) -> list[str]:
    return [child["kv_connector"] for child in connectors.children(config(spec, role))]


def told(spec: dict[str, Any], role: Any, name: str = WORKER, store: Any = STORE) -> dict[str, Any]:
    """``kv_connector_extra_config`` of one child."""
    (found,) = (c for c in connectors.children(config(spec, role, store)) if c["kv_connector"] == name)
    extra: dict[str, Any] = found["kv_connector_extra_config"]
    return extra


@pytest.mark.parametrize("owner", ["auto", "scheduler"])
def test_on_one_node_the_scheduler_owns_the_tier_unless_workers_are_asked_for(owner: str) -> None:
    assert names(pair(cache={"l1": {"size": "4Gi", "owner": owner}}), "prefill") == ["NixlConnector", TIERED]


def test_auto_gives_each_role_the_owner_that_its_nodes_need() -> None:
    spec = pair(cache={"l1": {"size": "4Gi", "roles": BOTH}})
    spec["decode"] |= {"nodes": 2, "parallelism": {"tensor": 2}}
    assert names(spec, "prefill") == ["NixlConnector", TIERED]
    assert names(spec, "decode") == ["NixlConnector", WORKER]
    assert connectors.l1_owners(serving(spec).spec) == ("scheduler", "worker")
    assert connectors.weights(serving(spec).spec) == {"NixlConnector": 1_000_000, TIERED: 1, WORKER: 1}


def test_nodes_of_a_role_without_tiers_change_nothing_for_the_other() -> None:
    spec = pair(cache={"l1": {"size": "4Gi"}})
    spec["decode"] |= {"nodes": 2, "parallelism": {"tensor": 2}}
    assert names(spec, "prefill") == ["NixlConnector", TIERED]
    assert connectors.tier_children(serving(spec).spec) == (TIERED,)


def test_auto_gives_an_engine_of_several_nodes_that_has_an_l2_alone_to_the_workers() -> None:
    spec = {"decode": {"nodes": 2, "parallelism": {"tensor": 2}}, "cache": {"l2": {"size": "8Gi"}}}
    assert config(spec, "decode")["kv_connector"] == WORKER


def test_an_owner_that_is_named_holds_for_each_role_that_has_a_tier() -> None:
    spec = pair(cache={"l1": {"size": "4Gi", "owner": "worker"}, "l2": {"size": "8Gi", "roles": BOTH}})
    assert told(spec, "prefill")["cpu_bytes_to_use"] == 4 * GI
    assert told(spec, "decode")["cpu_bytes_to_use"] == 2 * GI


def test_workers_are_told_what_they_know_and_nothing_else() -> None:
    assert told(pair(cache=OWNED), "prefill", store=None) == {
        "load_weight": 1,
        "cpu_bytes_to_use": 4 * GI,
        "eviction_policy": "lru",
    }
    l2 = {"size": "8Gi", "loads": "always", "loadTimeout": "10s", "roles": BOTH}
    spec = pair(cache={"l1": {**OWNED["l1"], "roles": BOTH}, "l2": l2})
    assert told(spec, "decode") == {
        "load_weight": 1,
        "cpu_bytes_to_use": 4 * GI,
        "eviction_policy": "lru",
        "offload_prompt_only": False,
        "loads": "always",
        "load_timeout_s": 10,
        "secondary_tiers": [STORE],
    }


def test_a_pods_bytes_are_told_however_many_pods_make_an_engine() -> None:
    spec = {"decode": {"nodes": 4, "parallelism": {"tensor": 8}}, "cache": {"l1": {"size": "4Gi"}}}
    assert config(spec, "decode", None)["kv_connector_extra_config"]["cpu_bytes_to_use"] == 4 * GI


@pytest.mark.parametrize(("owner", "name"), [("scheduler", TIERED), ("worker", WORKER)])
def test_data_parallel_ranks_share_the_bytes_of_their_pod(owner: str, name: str) -> None:
    spec = pair(cache={"l1": {"size": "4Gi", "owner": owner}}, prefill={"parallelism": {"tensor": 2, "data": 4}})
    assert told(spec, "prefill", name)["cpu_bytes_to_use"] == GI


def test_a_pod_of_several_that_make_an_engine_holds_its_share_of_the_ranks() -> None:
    spec = {"decode": {"nodes": 4, "parallelism": {"tensor": 8}}, "cache": {"l1": {"size": "4Gi"}}}
    need = host_memory(serving(spec).spec, "decode")
    assert (need.baseline, need.l1, need.shm) == ((8 + 3) * GI, 4 * GI, 6 * GI)


def test_who_owns_the_tier_changes_neither_memory_nor_revision() -> None:
    mine, theirs = (pair(cache={"l1": {"size": "4Gi", "owner": owner}}) for owner in ("worker", "scheduler"))
    assert host_memory(serving(mine).spec, "prefill") == host_memory(serving(theirs).spec, "prefill")
    assert render(mine).plan.revision == render(theirs).plan.revision


def test_the_rendered_connector_is_ours_and_the_store_lies_behind_it() -> None:
    plan = render(pair(cache={**OWNED, "l2": {"size": "8Gi"}}))
    child = plan.prefill.child(WORKER)
    assert child["kv_connector_module_path"] == "kvserving_connector.vllm.worker_cache"
    assert child["kv_role"] == "kv_both"
    (tier,) = child["kv_connector_extra_config"]["secondary_tiers"]
    assert tier["type"] == "SharedStoreTier"
    assert plan.plan.notices == ()


def test_mooncake_is_a_child_beside_the_workers_tier_and_no_store_behind_it() -> None:
    plan = render(pair(cache={**OWNED, "l2": {"type": "mooncake", "url": "mooncake://10.0.0.1:50051"}}))
    listed = [child["kv_connector"] for child in plan.prefill.children]
    assert listed == ["NixlConnector", WORKER, "MooncakeStoreConnector"]
    assert "secondary_tiers" not in plan.prefill.child(WORKER)["kv_connector_extra_config"]


def test_a_weight_by_name_reaches_the_workers_tier_and_adds_no_second_one() -> None:
    plan = render(pair(cache={**OWNED, "connectors": [{"name": WORKER, "weight": 7}]}))
    assert [child["kv_connector"] for child in plan.prefill.children] == ["NixlConnector", WORKER]
    assert plan.prefill.child(WORKER)["kv_connector_extra_config"]["load_weight"] == 7


@pytest.mark.parametrize(
    ("cache", "wrong"),
    [
        (OWNED, f"{TIERED} is not the tier of this object: name {WORKER}, or set spec.cache.l1.owner to scheduler"),
        (
            {"l1": {"size": "4Gi"}},
            f"{WORKER} is not the tier of this object: name {TIERED}, or set spec.cache.l1.owner to worker",
        ),
        ({"l2": {"size": "8Gi"}}, f"{WORKER} is not the tier of this object: name {TIERED}"),
        ({}, f"{WORKER} is a tier, and no role has one: set spec.cache.l1 or spec.cache.l2, or remove the entry"),
        ({}, f"{TIERED} is a tier, and no role has one"),
    ],
)
def test_a_weight_of_a_tier_that_no_role_has_is_refused(cache: dict[str, Any], wrong: str) -> None:
    report = faults(pair(cache={**cache, "connectors": [{"name": wrong.split()[0], "weight": 2}]}))
    assert f"spec.cache.connectors[0].name: {wrong}" in report
    assert len(report.splitlines()) == 1


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_workers_evict_by_lru_only(policy: str) -> None:
    report = faults(pair(cache=edited(OWNED, "l1.policy", policy)))
    assert (report == "") is (policy == "lru")
    if report:
        assert report.startswith("spec.cache.l1.policy: arc: workers that own the tier evict")
        assert report.endswith("use lru, or set spec.cache.l1.owner to scheduler")


def several(**l1: Any) -> dict[str, Any]:
    return {"decode": {"nodes": 2, "parallelism": {"tensor": 2}}, "cache": {"l1": {"size": "4Gi", **l1}}}


def test_where_only_workers_can_own_the_tier_no_other_owner_is_advised() -> None:
    assert "by nothing else: use lru\n" in faults(several(policy="arc")) + "\n"
    report = faults(several(owner="scheduler"))
    assert "spec.cache.l1.owner: scheduler: the scheduler's tier lies in the memory of one host" in report
    assert "spec.decode.nodes is 2: use auto or worker" in report


def test_a_bucket_behind_the_workers_tier_is_refused_with_both_ways_out() -> None:
    report = faults(pair(cache={**OWNED, "l2": {"type": "s3", "url": "s3://bucket"}}))
    assert report.startswith("spec.cache.l2.type: s3: vLLM's tier for buckets")
    assert "use another type, or set spec.cache.l1.owner to scheduler" in report
    other = pair(cache={"l1": {**OWNED["l1"], "roles": ["decode"]}, "l2": {"type": "s3", "url": "s3://bucket"}})
    assert "spec.cache.l2.type: s3" in faults(other)


@pytest.mark.parametrize(
    ("args", "off"),
    [
        (["--no-enable-prefix-caching"], True),
        (["--no_enable_prefix_caching"], True),
        (["--no-enable-prefix-c"], True),
        (["--enable-prefix-caching", "--max-num-seqs=8", "--no-enable-prefix-caching"], True),
        (["--no-enable-prefix-caching", "--enable-prefix-caching"], False),
        (["--enable-prefix-caching"], False),
        (["--no-enable-log-requests"], False),
    ],
)
def test_workers_need_the_engines_prefix_cache(args: list[str], off: bool) -> None:
    report = faults(pair(cache=OWNED, engine={"args": args}))
    if off:
        at = len(args) - 1
        assert report.startswith(f"spec.engine.args[{at}]: {args[at].replace('_', '-')} leaves nothing for a tier")
        assert "remove the flag" in report
    else:
        assert report == ""
    assert faults(pair(engine={"args": args})) == ""


@pytest.mark.parametrize("cache", [OWNED, {"l1": {"size": "4Gi"}}, {"l2": {"size": "8Gi"}}])
def test_tiers_on_an_engine_that_they_do_not_start_in_are_refused(cache: dict[str, Any]) -> None:
    report = faults(pair(cache=cache, engine={"version": "0.28.0"}))
    assert report.startswith("spec.engine.version: spec.cache needs vLLM 0.29.0 or newer, and this is 0.28.0")
    assert "set a newer version, or leave out cache.l1 and cache.l2" in report
    assert faults(pair(cache=cache, engine={"version": "0.29.0"})) == ""


def test_an_old_engine_without_tiers_of_ours_is_accepted() -> None:
    mooncake = {"l2": {"type": "mooncake", "url": "mooncake://10.0.0.1:50051"}}
    for cache in ({}, mooncake):
        assert faults(pair(cache=cache, engine={"version": "0.28.0"})) == ""


SEVERAL = {"google/gemma-3-4b-it": "slidingWindow", "Qwen/Qwen3-Next-80B-A3B-Instruct": "recurrent"}


@pytest.mark.parametrize(("model", "kind"), SEVERAL.items())
def test_workers_need_a_vllm_that_hears_of_failed_requests_for_several_cache_groups(model: str, kind: str) -> None:
    spec = pair(cache=OWNED, model={"uri": f"hf://{model}"}, engine={"version": "0.29.0"})
    report = faults(spec)
    assert report == (
        "spec.engine.version: the tier that workers own needs vLLM 0.30.0 or newer for models with several cache "
        f"groups (this one: {kind}), and this is 0.29.0, where a copy that fails ends the engine: use a newer one, "
        "or set spec.cache.l1.owner to scheduler"
    )
    assert faults(edited(spec, "engine.version", "0.30.0")) == ""
    assert faults(edited(spec, "cache.l1.owner", "scheduler")) == ""
    by_image = faults(edited(spec, "engine", {"image": "vllm/vllm-openai:v0.29.0"}))
    assert by_image.startswith("spec.engine.image: the tier that workers own needs vLLM 0.30.0")


def test_what_is_one_cache_group_or_not_known_is_not_refused_for_it() -> None:
    old = {"version": "0.29.0"}
    assert faults(pair(cache=OWNED, engine=old)) == ""
    assert faults(pair(cache=OWNED, engine=old, model={"uri": "hf://nobody/knows"})) == ""
    window = pair(cache=OWNED, model={"uri": "hf://google/gemma-3-4b-it"})
    assert faults({**window, "engine": {**old, "kv": {"hybrid": "disabled"}}}) == ""


STATES = ("--enable-prefix-caching", "--mamba-cache-mode")
RECURRENT = {"uri": "hf://tiiuae/Falcon-H1-7B-Instruct"}


def flags(spec: dict[str, Any]) -> list[list[str | None]]:
    """What each role is told of its states."""
    return [[engine.flag(name) for name in STATES] for engine in render(spec).engines]


def test_both_roles_of_a_recurrent_model_keep_states_that_workers_can_resume_from() -> None:
    assert flags(pair(cache=OWNED, model=RECURRENT)) == [["true", "align"]] * 2
    stated = {"uri": "hf://nobody/knows", "facts": {"kind": "recurrent"}}
    assert flags({"decode": {}, "cache": OWNED, "model": stated}) == [["true", "align"]]


@pytest.mark.parametrize(
    "spec",
    [
        pair(model=RECURRENT),
        pair(model=RECURRENT, cache={"l1": {"size": "4Gi"}}),
        pair(cache=OWNED),
        pair(cache=OWNED, model={"uri": "hf://nobody/knows"}),
        pair(cache=OWNED, model={"uri": "hf://google/gemma-3-4b-it"}),
    ],
)
def test_other_models_and_owners_are_left_to_vllm(spec: dict[str, Any]) -> None:
    assert flags(spec) == [[None, None]] * 2


@pytest.mark.parametrize(
    ("args", "added"),
    [
        (["--mamba-cache-mode=align"], ["--enable-prefix-caching"]),
        (["--mamba_cache_mode", "align"], ["--enable-prefix-caching"]),
        (["--enable-prefix-caching"], ["--mamba-cache-mode=align"]),
        (["--enable-prefix-c", "--mamba-cache-mod=align"], []),
    ],
)
def test_a_flag_about_states_that_the_user_gave_is_not_given_again(args: list[str], added: list[str]) -> None:
    made = render(pair(cache=OWNED, model=RECURRENT, engine={"args": args}))
    for engine in made.engines:
        assert [word for word in engine.args if word.startswith(("--enable-prefix", "--mamba"))] == [
            *added,
            *(word for word in args if word.startswith("--")),
        ]


def test_flags_about_states_are_part_of_what_the_roles_share_whoever_writes_them() -> None:
    written = {"args": ["--enable-prefix-caching", "--mamba-cache-mode=align"]}
    spec = pair(cache=OWNED, model=RECURRENT)
    revision = render(spec).plan.revision
    assert revision == render({**spec, "engine": written}).plan.revision
    assert revision != render(edited(spec, "cache.l1.owner", "scheduler")).plan.revision


def test_states_that_no_prompt_can_be_resumed_from_are_refused() -> None:
    spec = pair(cache=OWNED, model=RECURRENT, engine={"args": ["--max-num-seqs=8", "--mamba-cache-mode=none"]})
    report = faults(spec)
    assert report.startswith("spec.engine.args[1]: --mamba-cache-mode keeps the states of this model at no boundary")
    assert report.endswith("write --mamba-cache-mode=align, or set spec.cache.l1.owner to scheduler")
    assert faults(edited(spec, "cache.l1.owner", "scheduler")) == ""
    assert faults(edited(spec, "model.uri", "hf://Qwen/Qwen3-8B")) == ""


@pytest.mark.parametrize("owner", ["scheduler", "worker"])
def test_an_l1_whose_share_holds_no_block_of_the_model_is_refused(owner: str) -> None:
    l1 = {"size": "32Mi", "owner": owner}
    spec = pair(cache={"l1": l1}, prefill={"parallelism": {"tensor": 8}}, engine={"kv": {"blockSize": 256}})
    # 36 layers, keys and values, 1 of 8 heads of 128 numbers, 2 bytes each, 256 tokens: 4.5 MiB of 4 MiB.
    assert faults(spec) == (
        "spec.cache.l1.size: 32Mi is 4Mi for each of the 8 ranks of a prefill pod, and a block of 256 tokens of this "
        "model takes 4608Ki: set it to several times 36Mi"
    )
    assert faults(edited(spec, "cache.l1.size", "36Mi")) == ""
    assert faults(edited(spec, "engine.kv.dtype", "fp8")) == ""
    assert faults(edited(spec, "model", {"uri": "hf://nobody/knows"})) == ""


def test_a_block_of_a_cpu_engine_is_that_of_its_default() -> None:
    spec = pair(cache={"l1": {"size": "16Mi", "owner": "worker"}}, engine={"device": "cpu"})
    assert faults(spec) == (
        "spec.cache.l1.size: 16Mi is for a prefill pod, and a block of 128 tokens of this model takes 18Mi: "
        "set it to several times 18Mi"
    )
    assert faults(edited(spec, "engine.kv.blockSize", 64)) == ""
