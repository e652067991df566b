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
