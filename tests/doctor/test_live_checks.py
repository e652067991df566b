"""What is told of an object in its cluster: nothing of a healthy one, and each known mistake by its name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from tests.doctor.world import (
    TAINTED,
    container,
    env,
    found,
    healthy,
    node,
    spoiled,
    with_child,
    with_condition,
    with_pod,
    with_series,
)

from kvserving_operator.api.schema import object_schema
from kvserving_operator.doctor.facts import Keys, ObjectFacts, Unread
from kvserving_operator.doctor.findings import Severity

FACTS = healthy()
assert FACTS.live is not None
LIVE = FACTS.live
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def test_a_healthy_object_has_no_finding() -> None:
    assert found(FACTS) == {}


def pod(role: str, spoil: Callable[[Any], object]) -> ObjectFacts:
    return with_pod(FACTS, role, spoil)


def status(role: str, **container_status: Any) -> ObjectFacts:
    return pod(role, lambda p: p["status"]["containerStatuses"][0].update(container_status))


def flag(p: Any, name: str, *values: str) -> None:
    args = container(p)["args"]
    args[:] = [arg for arg in args if not arg.startswith(name)] + list(values)


def taken(child: Any) -> None:
    (ours,) = child["metadata"]["managedFields"]
    ports = ours["fieldsV1"]["f:spec"].pop("f:ports")
    other = {"manager": "kubectl-patch", "operation": "Update", "fieldsV1": {"f:spec": {"f:ports": ports}}}
    child["metadata"]["managedFields"].append(other)


def aside(p: Any) -> None:
    p["metadata"]["labels"]["kvserving.dev/role"] = "aside"
    del p["metadata"]["ownerReferences"]


def volume(p: Any, **source: Any) -> None:
    named = next(v for v in p["spec"]["volumes"] if v["name"] == "shm")
    named.clear()
    named.update(name="shm", **source)


def without_child(kind: str) -> ObjectFacts:
    return spoiled(FACTS, children=tuple(child for child in LIVE.children if child["kind"] != kind))


def unscheduled(p: Any) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    p["status"] = {"conditions": [condition]}


def old_schema() -> dict[str, Any]:
    schema = copy.deepcopy(object_schema())
    del schema["properties"]["spec"]["properties"]["cache"]["properties"]["l1"]["properties"]["owner"]
    return schema


def new_schema() -> dict[str, Any]:
    schema = copy.deepcopy(object_schema())
    schema["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    return schema


def event(reason: str) -> dict[str, Any]:
    about = {"kind": "Pod", "name": "qwen-prefill-x"}
    return {"type": "Warning", "reason": reason, "message": "no such volume", "count": 7, "involvedObject": about}


SETUP = "vllm:cache_config_info{{{}}} 1"
OOM = {"lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "restartCount": 2}
ENDED = {"lastState": {"terminated": {"exitCode": 1}}, "restartCount": 4, "ready": True}
LOOP = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}

CASES: dict[str, tuple[Callable[[], ObjectFacts], Severity, str, str]] = {
    "not-looked-at": (
        lambda: spoiled(FACTS, unread=(Unread("nodes", "nodes may not be read", "grant list"),)),
        INFO, "nodes", "may not be read",
    ),
    "crd-old": (lambda: spoiled(FACTS, schema=old_schema()), WARNING, "CustomResource", "spec.cache.l1.owner"),
    "command-old": (lambda: spoiled(FACTS, schema=new_schema()), WARNING, "CustomResource", "spec.later"),
    "not-reconciled": (lambda: spoiled(FACTS, body={**LIVE.body, "status": {}}), ERROR, "qwen", "no status"),
    "status-behind": (
        lambda: spoiled(FACTS, body={**LIVE.body, "metadata": {**LIVE.body["metadata"], "generation": 2}}),
        WARNING, "qwen", "generation 1",
    ),
    "condition-StorageReady": (
        lambda: with_condition(FACTS, "StorageReady", "False", "PodFailing", "0 of 1 store pods are ready"),
        ERROR, "status.conditions[StorageReady]", "0 of 1",
    ),
    "condition-TransferVerified": (
        lambda: with_condition(FACTS, "TransferVerified", "Unknown", "Verifying", "a probe is on its way"),
        INFO, "status.conditions[TransferVerified]", "on its way",
    ),
    "child-missing": (lambda: without_child("Service"), ERROR, "Service", "not there"),
    "network-policy-missing": (lambda: without_child("NetworkPolicy"), ERROR, "NetworkPolicy", "not there"),
    "child-of-other": (
        lambda: with_child(FACTS, "Service", "router", lambda c: c["metadata"].update(ownerReferences=[])),
        WARNING, "Service qwen", "not its child",
    ),
    "secret-missing": (
        lambda: spoiled(FACTS, secrets={**(LIVE.secrets or {}), "hub": None}), ERROR, "Secret hub", "does not exist",
    ),
    "secret-key-missing": (
        lambda: spoiled(FACTS, secrets={**(LIVE.secrets or {}), "hub": Keys(frozenset({"token"}))}),
        ERROR, "Secret hub", "HF_TOKEN",
    ),
    "claim-missing": (lambda: spoiled(FACTS, claims={"weights": None}), ERROR, "weights", "does not exist"),
    "claim-unbound": (
        lambda: spoiled(FACTS, claims={"weights": {"spec": {"accessModes": ["ReadWriteMany"]},
                                                   "status": {"phase": "Pending"}}}),
        WARNING, "weights", "Pending",
    ),
    "claim-of-one-node": (
        lambda: spoiled(FACTS, claims={"weights": {"spec": {"accessModes": ["ReadWriteOnce"]},
                                                   "status": {"phase": "Bound"}}}),
        WARNING, "weights", "ReadWriteOnce",
    ),
    "event-FailedMount": (lambda: spoiled(FACTS, events=(event("FailedMount"),)), WARNING, "Pod qwen", "7 times"),
    "no-pods": (
        lambda: spoiled(FACTS, pods=LIVE.pods_of("decode", "router", "store")),
        ERROR, "qwen-prefill-", "no prefill pod",
    ),
    "unschedulable": (lambda: pod("decode", unscheduled), ERROR, "pod qwen-decode", "0/3 nodes"),
    "pod-failing": (lambda: status("decode", **LOOP), ERROR, "pod qwen-decode", "CrashLoopBackOff"),
    "restarted": (lambda: status("decode", **ENDED), WARNING, "pod qwen-decode", "exit code 1, restarted 4 times"),
    "out-of-memory": (lambda: status("prefill", **OOM), ERROR, "pod qwen-prefill", "64Gi L1"),
    "connector-missing": (
        lambda: pod("decode", lambda p: flag(p, "--kv-transfer-config")), ERROR, "pod qwen-decode", "no --kv-transfer",
    ),
    "connector-replaced": (
        lambda: pod("decode", lambda p: flag(p, "--kv-off", "--kv-offloading-size=4")),
        ERROR, "pod qwen-decode", "--kv-offloading-size",
    ),
    "side-channel-address": (
        lambda: pod("decode", lambda p: env(p, "VLLM_NIXL_SIDE_CHANNEL_HOST", "0.0.0.0")),
        ERROR, "pod qwen-decode", "0.0.0.0",
    ),
    "shm-missing": (lambda: pod("prefill", lambda p: volume(p, emptyDir={})), ERROR, "pod qwen-prefill", "/dev/shm"),
    "shm-small": (
        lambda: pod("prefill", lambda p: volume(p, emptyDir={"medium": "Memory", "sizeLimit": "8Gi"})),
        ERROR, "pod qwen-prefill", "8Gi",
    ),
    "service-links": (
        lambda: pod("decode", lambda p: p["spec"].pop("enableServiceLinks")), WARNING, "pod qwen-decode", "is on",
    ),
    "grace-short": (
        lambda: pod("decode", lambda p: p["spec"].update(terminationGracePeriodSeconds=30)),
        WARNING, "pod qwen-decode", "is 30",
    ),
    "two-revisions": (
        lambda: pod("decode", lambda p: p["metadata"]["labels"].update({"kvserving.dev/revision": "feed" * 4})),
        INFO, "pods", "2 revisions",
    ),
    "hash-seed-differs": (
        lambda: pod("decode", lambda p: env(p, "PYTHONHASHSEED", "random")), ERROR, "pod qwen-decode", "random",
    ),
    "images-differ": (
        lambda: status("decode", imageID="docker.io/vllm@sha256:" + "b" * 64), WARNING, "pods", "sha256:bbbb",
    ),
    "workload-changed": (
        lambda: with_child(FACTS, "Deployment", "decode", lambda c: flag(c, "--shutdown", "--shutdown-timeout=1")),
        WARNING, "Deployment qwen-decode", "--shutdown-timeout differs",
    ),
    "child-changed": (
        lambda: with_child(FACTS, "Service", "router", taken), WARNING, "Service qwen", "kubectl-patch",
    ),
    "pod-args-changed": (
        lambda: pod("decode", lambda p: flag(p, "--middleware")), ERROR, "pod qwen-decode", "--middleware is missing",
    ),
    "pod-env-changed": (lambda: pod("decode", lambda p: env(p, "UCX_TLS", "tcp")), ERROR, "pod qwen-decode", "UCX_TLS"),
    "pod-env-added": (lambda: pod("decode", lambda p: env(p, "VLLM_X", "1")), INFO, "pod qwen-decode", "VLLM_X"),
    "pod-image-rewritten": (
        lambda: pod("decode", lambda p: container(p).update(image="mirror/v")), INFO, "pod qwen-decode", "mirror/v",
    ),
    "sidecar": (
        lambda: pod("decode", lambda p: p["spec"]["containers"].append({"name": "istio-proxy"})),
        WARNING, "pod qwen-decode", "istio-proxy",
    ),
    "pod-aside": (lambda: pod("decode", aside), WARNING, "pod qwen-decode", "(role aside) and belongs to no workload"),
    "no-node-fits": (
        lambda: spoiled(FACTS, nodes=(node("a", **{"rdma/hca": None}),)),
        ERROR, "Deployment qwen-decode", "rdma/hca 1 (most on a node: 0)",
    ),
    "tainted": (
        lambda: spoiled(FACTS, nodes=TAINTED),
        WARNING, "Deployment qwen-decode", "nvidia.com/gpu",
    ),
    "too-few-devices": (
        lambda: spoiled(FACTS, nodes=(node("a", **{"nvidia.com/gpu": "1"}),)), ERROR, "nvidia.com/gpu", "ask for 2",
    ),
    "no-room-for-a-rollout": (
        lambda: spoiled(FACTS, nodes=(node("a", **{"nvidia.com/gpu": "2"}),)), WARNING, "spec.rollout", "for 1 more",
    ),
    "engine-version": (
        lambda: with_series(FACTS, "decode", "", version="0.30.0+cu129"), ERROR, "pod qwen-decode", "0.30.0+cu129",
    ),
    "prefix-cache-off": (
        lambda: with_series(FACTS, "decode", SETUP.format('enable_prefix_caching="False"'), drop="cache_config"),
        WARNING, "pod qwen-decode", "without prefix caching",
    ),
    "preemptions": (
        lambda: with_series(FACTS, "decode", "vllm:num_preemptions_total 400", drop="preempt"),
        WARNING, "pod qwen-decode", "400 requests",
    ),
    "nothing-runs": (
        lambda: with_series(FACTS, "decode", "vllm:num_requests_running 0", drop="running"),
        WARNING, "pod qwen-decode", "1 requests wait",
    ),
    "connector-silent": (
        lambda: with_series(FACTS, "decode", "", drop="receipts"), WARNING, "pod qwen-decode", "no series",
    ),
    "read-after-lease": (
        lambda: with_series(FACTS, "prefill", "vllm:nixl_num_notifications_after_expiry_total 2"),
        ERROR, "pod qwen-prefill", "2 transfers",
    ),
    "leases-expired": (
        lambda: with_series(FACTS, "prefill", "vllm:nixl_num_kv_expired_reqs_total 90"),
        WARNING, "pod qwen-prefill", "since the engine started, KV of 90 requests of 900 was",
    ),
    "transfers-failed": (
        lambda: with_series(FACTS, "decode", "vllm:nixl_num_failed_transfers_total 5"),
        WARNING, "pod qwen-decode", "5 transfers",
    ),
    "handoffs-refused": (
        lambda: with_series(FACTS, "decode", 'kvserving:guard_refused_total{reason="unsigned"} 6'),
        WARNING, "pod qwen-decode", "unsigned 6",
    ),
    "decode-recomputes": (
        lambda: with_series(FACTS, "decode", "vllm:external_prefix_cache_hits_total 1000", drop="cache_hits"),
        ERROR, "pod qwen-decode", "1% of the 100000",
    ),
    "store-slow": (
        lambda: with_series(FACTS, "prefill", "kvserving:tier_timeouts_total 3"),
        WARNING, "pod qwen-prefill", "3 times",
    ),
    "store-fails": (
        lambda: with_series(FACTS, "prefill", 'kvserving:store_misses_total{reason="denied"} 8'),
        WARNING, "pod qwen-prefill", "denied 8",
    ),
    "l1-loads-failed": (
        lambda: with_series(FACTS, "prefill", "kvserving:worker_cache_failed_tokens_total 128"),
        WARNING, "pod qwen-prefill", "128 tokens",
    ),
    "tiers-slower-than-computing": (
        lambda: with_series(
            FACTS,
            "prefill",
            "vllm:kv_connector_mc_queries_total 90\nkvserving:tier_loads_total 2\n"
            "kvserving:tier_loads_skipped_total 50",
        ),
        INFO, "pod qwen-prefill", "50 hits",
    ),
    "engines-differ": (
        lambda: with_series(FACTS, "decode", SETUP.format('block_size="32"'), drop="cache_config"),
        ERROR, "pods", "block_size",
    ),
}  # fmt: skip


@pytest.mark.parametrize("check", sorted(CASES))
def test_a_known_mistake_is_told_by_name_place_and_fix(check: str) -> None:
    made, severity, where, what = CASES[check]
    told = found(made())
    assert check in told, sorted(told)
    finding = told[check]
    assert finding.severity is severity
    assert where in finding.where
    assert what in finding.what
    assert finding.why
    assert finding.fix


def test_an_engine_that_ended_without_an_error_was_restarted_too() -> None:
    told = found(status("decode", **ENDED | {"lastState": {"terminated": {"exitCode": 0}}}))
    assert "ended with exit code 0, restarted 4 times" in told["restarted"].what


def test_what_the_end_of_a_container_costs_and_its_way_out_are_those_of_its_role() -> None:
    once = ENDED | {"restartCount": 1}
    told = found(status("router", **once))["restarted"]
    assert told.what.endswith("ended with exit code 1, restarted once")
    assert told.why == "requests that went through it failed"
    assert found(status("prefill", **once))["restarted"].why.startswith("its requests failed, and what it had cached ")
    for role, cost, way_out in (
        ("router", "requests that went through it failed", "raise spec.router.replicas"),
        ("store", "what it held is gone, and those prefixes are computed again", "lower spec.cache.l2.maxUsage"),
    ):
        killed = found(status(role, **OOM))["out-of-memory"]
        assert killed.why == cost
        assert killed.fix.startswith(way_out)
    engine = found(status("decode", **OOM))["out-of-memory"]
    assert engine.why.endswith("; tiers in /dev/shm count for the limit")
    assert engine.fix.startswith("set or raise spec.decode.resources.limits.memory")


def test_a_foreign_change_names_who_else_sets_fields() -> None:
    def edit(child: Any) -> None:
        env(child, "UCX_TLS", "tcp")
        entry = {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:spec": {"f:template": {}}}}
        child["metadata"]["managedFields"].append(entry)

    told = found(with_child(FACTS, "Deployment", "decode", edit))["workload-changed"]
    assert "UCX_TLS differs" in told.what
    assert "kubectl-edit" in told.what


def test_what_others_add_to_a_workload_stays_and_the_way_out_names_it() -> None:
    def add(child: Any) -> None:
        env(child, "NCCL_DEBUG", "INFO")

    def change(child: Any) -> None:
        env(child, "UCX_TLS", "tcp")

    added = with_child(FACTS, "Deployment", "decode", add)
    name = next(
        child for child in LIVE.children if child["kind"] == "Deployment" and "decode" in str(child["metadata"])
    )
    told = found(added)["workload-changed"]
    assert "leaves what others add" in told.fix
    assert f"take NCCL_DEBUG out with `kubectl edit deployment/{name['metadata']['name']} -n prod`" in told.fix
    changed = found(with_child(FACTS, "Deployment", "decode", change))["workload-changed"]
    assert "sets what it planned again" in changed.fix
    assert "others add" not in changed.fix


def test_the_way_out_of_a_changed_child_names_that_child() -> None:
    told = found(with_child(FACTS, "Service", "router", taken))["child-changed"]
    assert "`kubectl delete service/qwen -n prod`, and the operator makes it anew" in told.fix


def test_a_pod_put_aside_is_told_until_it_goes() -> None:
    told = found(pod("decode", aside))["pod-aside"]
    assert "`kubectl delete pod qwen-decode-" in told.fix
    assert "kvserving.dev/role" in told.fix
    going = with_pod(FACTS, "store", lambda p: p["metadata"].update(deletionTimestamp="now", ownerReferences=[]))
    assert "pod-aside" not in found(going)


def test_pods_are_not_compared_with_a_template_that_is_still_rolled_out() -> None:
    spoil = with_pod(FACTS, "decode", lambda p: flag(p, "--middleware"))
    rolling = with_child(spoil, "Deployment", "decode", lambda c: c["status"].update(updatedReplicas=0))
    assert "pod-args-changed" not in found(rolling)


def test_no_value_of_an_argument_or_variable_is_told() -> None:
    secret = "s3cr3t-of-the-user"

    def spoil(p: Any) -> None:
        flag(p, "--shutdown-timeout", f"--shutdown-timeout={secret}", f"--hf-token={secret}")
        env(p, "UCX_TLS", secret)
        env(p, "ADDED", secret)

    told = found(with_pod(with_child(FACTS, "Deployment", "decode", spoil), "prefill", spoil))
    assert {"workload-changed", "pod-args-changed", "pod-env-changed", "pod-env-added"} <= set(told)
    assert secret not in str([finding.to_json() for finding in told.values()])


def test_what_may_not_be_read_is_not_judged() -> None:
    told = found(spoiled(FACTS, nodes=None, secrets=None, schema=None, engines={}))
    assert told == {}
