"""Rollouts and scaling: whose number the replicas are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.plan.support import LOCAL, case, faults, pair, render

from kvserving_operator.api.serving_role import KVServingRoleSpec

SCALED = {"autoscaling": {"min": 2, "max": 8}}


@pytest.mark.parametrize("via", ["hpa", "keda", "external"])
def test_a_scaled_role_never_sends_replicas(via: str) -> None:
    plan = render(pair(decode={"autoscaling": {"min": 2, "max": 8, "via": via}}))
    assert "replicas" not in plan.decode.deployment["spec"]
    assert plan.prefill.deployment["spec"]["replicas"] == 1


@pytest.mark.parametrize(("given", "sent"), [({}, 1), ({"replicas": 0}, 0), ({"replicas": 4}, 4)])
def test_a_fixed_role_sends_its_replicas(given: dict[str, int], sent: int) -> None:
    assert render({"decode": given}).decode.deployment["spec"]["replicas"] == sent


def test_each_scaled_role_has_a_target_with_a_selector() -> None:
    plan = case("07")
    for role in ("prefill", "decode"):
        target = plan.one("KVServingRole", f"qwen-scaled-{role}")
        assert target["spec"]["selector"] == f"kvserving.dev/name=qwen-scaled,kvserving.dev/role={role}"


def test_an_engine_on_several_nodes_counts_once() -> None:
    """B113: a scaler that saw every pod of a group would multiply what it asks for."""
    plan = render(pair(decode={**SCALED, "nodes": 2}), kinds=frozenset({"LeaderWorkerSet"}))
    terms = dict(t.split("=") for t in plan.one("KVServingRole", "qwen-decode")["spec"]["selector"].split(","))
    (group,) = plan.all("LeaderWorkerSet")
    templates = group["spec"]["leaderWorkerTemplate"]
    marks = [templates[name]["metadata"]["labels"] for name in ("leaderTemplate", "workerTemplate")]
    assert [terms.items() <= found.items() for found in marks] == [True, False]


def test_scalers_act_on_the_roles_target_within_its_bounds() -> None:
    plan = case("07")
    hpa = plan.one("HorizontalPodAutoscaler", "qwen-scaled-prefill")["spec"]
    keda = plan.one("ScaledObject", "qwen-scaled-decode")["spec"]
    assert (hpa["minReplicas"], hpa["maxReplicas"]) == (1, 4)
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (2, 8)
    for spec, role in ((hpa, "prefill"), (keda, "decode")):
        assert spec["scaleTargetRef"]["kind"] == "KVServingRole"
        assert spec["scaleTargetRef"]["name"] == f"qwen-scaled-{role}"


def test_scalers_stay_over_a_change_of_revision() -> None:
    scaled = pair(decode=SCALED)
    names = [
        [(o["kind"], o["metadata"]["name"]) for o in plan.plan.objects if o["kind"] == "HorizontalPodAutoscaler"]
        for plan in (render(scaled), render({**scaled, "engine": {"version": "0.30.0"}}))
    ]
    assert names[0] == names[1] == [("HorizontalPodAutoscaler", "qwen-decode")]


def test_scaling_down_waits_for_the_drain() -> None:
    plan = render(pair(decode={**SCALED, "drainTimeout": "10m"}))
    down = plan.one("HorizontalPodAutoscaler", "qwen-decode")["spec"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= 600
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 600}]


@pytest.mark.parametrize(
    ("metric", "target", "value"),
    [
        ("ttft", 500, "500m"),
        ("itl", 40, "40m"),
        ("kvUsage", 80, "800m"),
        ("queue", 8, "8"),
        ("queue", None, "8"),
        ("running", 96, "96"),
    ],
)
def test_targets_are_in_the_metrics_own_unit(metric: str, target: int | None, value: str) -> None:
    scaling = {"max": 4, "metric": metric, **({"target": target} if target else {})}
    plan = render(pair(prefill={"autoscaling": scaling}))
    (rule,) = plan.one("HorizontalPodAutoscaler", "qwen-prefill")["spec"]["metrics"]
    assert rule["pods"]["target"] == {"type": "AverageValue", "averageValue": value}


def measured(hpa: Mapping[str, Any]) -> dict[str, str]:
    return {rule["pods"]["metric"]["name"]: rule["pods"]["target"]["averageValue"] for rule in hpa["spec"]["metrics"]}


def test_without_a_metric_named_each_role_is_scaled_by_what_fits_it() -> None:
    plan = render(pair(prefill=SCALED, decode=SCALED))
    assert measured(plan.one("HorizontalPodAutoscaler", "qwen-prefill")) == {
        "vllm_num_requests_waiting": "8",
        "vllm_time_to_first_token_seconds": "500m",
        "vllm_kv_cache_usage_perc": "800m",
    }
    assert measured(plan.one("HorizontalPodAutoscaler", "qwen-decode")) == {
        "vllm_kv_cache_usage_perc": "800m",
        "vllm_num_requests_running": "200",
    }


def test_without_a_metric_named_the_target_is_that_of_the_first() -> None:
    plan = render(pair(prefill={"autoscaling": {"max": 4, "target": 3}}))
    found = measured(plan.one("HorizontalPodAutoscaler", "qwen-prefill"))
    assert list(found.items())[:2] == [
        ("vllm_num_requests_waiting", "3"),
        ("vllm_time_to_first_token_seconds", "500m"),
    ]


@pytest.mark.parametrize(
    ("args", "target"),
    [(["--max-num-seqs", "64"], "51"), (["--max_num_seqs=1"], "1"), (["--max-num-seqs", "+064"], "51"), ([], "200")],
)
def test_as_many_requests_run_as_leave_room_in_the_batch(args: list[str], target: str) -> None:
    plan = render(pair(decode={**SCALED, "args": args}))
    assert measured(plan.one("HorizontalPodAutoscaler", "qwen-decode"))["vllm_num_requests_running"] == target


def test_keda_asks_for_the_same_and_never_gets_what_is_no_number() -> None:
    scaled = {"autoscaling": {"max": 4, "via": "keda"}}
    plan = render(pair(prefill=scaled, decode=scaled))
    prefill = plan.one("ScaledObject", "qwen-prefill")["spec"]["triggers"]
    assert [(t["metricType"], t["metadata"]["threshold"]) for t in prefill] == [
        ("AverageValue", "8"),
        ("Value", "0.5"),
        ("Value", "0.8"),
    ]
    pods = 'kvserving_dev_name="qwen",kvserving_dev_role="prefill"'
    assert [t["metadata"]["query"] for t in prefill] == [
        f"sum(vllm:num_requests_waiting{{{pods}}})",
        "(histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket"
        f"{{{pods}}}[2m]))) >= 0) or vector(0)",
        f"avg(vllm:kv_cache_usage_perc{{{pods}}})",
    ]
    assert len(plan.one("ScaledObject", "qwen-decode")["spec"]["triggers"]) == 2


def test_a_suspended_object_keeps_stores_and_claims_and_runs_nothing() -> None:
    spec = pair(
        decode=SCALED,
        suspend=True,
        cache={"l1": {"size": "4Gi"}, "l2": {"size": "8Gi"}},
        model={
            "uri": "hf://Qwen/Qwen3-8B",
            "cache": {"size": "10Gi"},
        },
    )
    plan = render(spec)
    assert [plan.role(role).deployment["spec"]["replicas"] for role in ("prefill", "decode", "router")] == [0, 0, 0]
    assert "HorizontalPodAutoscaler" not in plan.kinds()
    assert {"StatefulSet", "PersistentVolumeClaim", "KVServingRole"} <= plan.kinds()


def test_a_scale_target_carries_no_number() -> None:
    """It would be set again with every apply, whatever HPA wrote."""
    for target in case("07").all("KVServingRole"):
        assert set(target["spec"]) == {"servingName", "role", "bounds", "selector"}


def test_a_scale_target_is_what_its_definition_allows() -> None:
    for target in case("07").all("KVServingRole"):
        read = KVServingRoleSpec.model_validate(target["spec"])
        assert read.model_dump(by_alias=True, exclude_none=True) == target["spec"]


def test_the_selector_matches_the_engine_pods_of_every_revision_and_no_other_pod() -> None:
    scaled = pair(prefill=SCALED, decode=SCALED, cache={"l2": {"size": "8Gi"}})
    plans = [render(scaled), render({**scaled, "engine": {"version": "0.30.0"}})]
    assert plans[0].plan.revision != plans[1].plan.revision
    terms = dict(t.split("=") for t in plans[0].one("KVServingRole", "qwen-decode")["spec"]["selector"].split(","))
    for plan in plans:
        labelled = {
            o["metadata"]["name"]: o["spec"]["template"]["metadata"]["labels"]
            for kind in ("Deployment", "StatefulSet")
            for o in plan.all(kind)
        }
        matched = [name for name, marks in labelled.items() if terms.items() <= marks.items()]
        assert matched == [plan.decode.deployment["metadata"]["name"]]


def test_replicas_and_autoscaling_exclude_each_other() -> None:
    assert "spec.decode.replicas" in faults(pair(decode={"replicas": 3, **SCALED}))


def test_nothing_scales_on_a_local_site() -> None:
    plan = render(pair(decode=SCALED), site=LOCAL)
    assert plan.decode.deployment["spec"]["replicas"] == 2
    assert [n.path for n in plan.plan.notices if "nothing scales" in n.message] == ["spec.decode.autoscaling"]


def test_a_rollout_keeps_capacity_by_default() -> None:
    """1.11"""
    strategy = render(pair()).prefill.deployment["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_recreate_and_pause_reach_the_workloads() -> None:
    """1.11"""
    spec = render(pair(rollout={"strategy": "Recreate", "paused": True})).prefill.deployment["spec"]
    assert spec["strategy"] == {"type": "Recreate"}
    assert spec["paused"] is True


def test_a_load_longer_than_the_deadline_does_not_fail_the_rollout() -> None:
    """1.11"""
    plan = render(pair(prefill={"startupTimeout": "2h"}, rollout={"progressDeadline": "1h"}))
    assert plan.prefill.deployment["spec"]["progressDeadlineSeconds"] > 7200
