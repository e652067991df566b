"""Every field of the spec reaches a child object, or is listed with what it does instead."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.fields import leaves
from tests.plan.support import edited, raw_case

from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.plan.planning import plan
from kvserving_operator.plan.types import Observed

# Fields without effect on objects in this release, and what reads them.
ELSEWHERE = {
    "model.facts.layers": "reported; no check needs it yet",
    "model.facts.headDim": "reported; no check needs it yet",
    "model.facts.maxLength": "reported; the probe's prompt is cut to it",
    "model.facts.kind": "checks of hybrid memory and of recompute",
    "model.facts.kvHeads": "check of replicated heads",
    "prefill.parallelism.pipeline": "refused above 1: beside it decode fetches by NIXL",
    "ratio.min": "check of fixed replicas; the operator bounds scaled ones",
    "ratio.max": "check of fixed replicas; the operator bounds scaled ones",
    "transfer.verify.interval": "the operator's own clock",
    "router.gateway.inferencePool": "a notice: not created in this release",
}

SMG = {"model.loras": [], "router.type": "smg"}
EXTERNAL = {"cache.l2.type": "external", "cache.l2.url": "redis://kv.cache.svc:6379", "cache.l2.size": "8Gi"}
S3 = {"cache.l2.type": "s3", "cache.l2.url": "s3://bucket/path"}
FILES = {"cache.l2.type": "filesystem", "cache.l2.replicas": 1}
FIXED = {"prefill.autoscaling": None, "decode.autoscaling": None}
KVCACHED: dict[str, Any] = {
    "engine.version": "0.30.0",
    "engine.image": None,
    "kvcached.enabled": True,
    "cache.l1.policy": "lru",
    "cache.connectors": [],
}

# New value, and what else must hold for the field to matter (in both plans).
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "model.uri": ("hf://meta-llama/Llama-3.1-8B-Instruct", {}),
    "model.name": ("other", {}),
    "model.revision": ("main", {}),
    "model.secretRef": ("other-token", {}),
    "model.cache.pvc": ("claim", {}),
    "model.cache.size": ("400Gi", {}),
    "model.cache.storageClass": ("other", {}),
    "model.loras": ([], {}),
    "engine.version": ("0.30.0", {"engine.image": None}),
    "engine.image": ("mirror/vllm:v0.33.0", {}),
    "engine.device": (
        "cpu",
        {
            **FIXED,
            "engine.kv.blockSize": 32,
            **{f"{r}.resources": {"limits": {"memory": "512Gi"}} for r in ("prefill", "decode")},
        },
    ),
    "engine.connector": ("baked", {}),
    "engine.args": (["--max-num-seqs", "128"], {}),
    "engine.env": ([], {}),
    "engine.kv.blockSize": (32, {}),
    "engine.kv.dtype": ("fp8", {}),
    "engine.kv.hybrid": ("disabled", {}),
    "engine.kv.hashSeed": ("9", {}),
    "transfer.onFailure": ("fail", {}),
    "transfer.lease": ("60s", {}),
    "transfer.stagingMemory": ("2Gi", {}),
    "transfer.rdma.mode": ("disabled", {}),
    "transfer.rdma.resource": ("rdma/hca", {}),
    "transfer.rdma.claimTemplate": ("other-nic", {}),
    "cache.l1.size": ("64Gi", {}),
    "cache.l1.policy": ("lru", {}),
    "cache.l1.roles": (["prefill"], {}),
    "cache.l1.owner": ("worker", {"cache.l1.policy": "lru", "cache.connectors": []}),
    "cache.l2.type": ("filesystem", {"cache.l2.replicas": 1}),
    "cache.l2.size": ("300Gi", {}),
    "cache.l2.maxUsage": ("50%", {}),
    "cache.l2.replicas": (2, {}),
    "cache.l2.roles": (["prefill"], {}),
    "cache.l2.storageClass": ("shared-rwx", FILES),
    "cache.l2.url": ("redis://other.cache.svc:6379", EXTERNAL),
    "cache.l2.endpoint": ("https://s3.example.org:9000", S3),
    "cache.l2.region": ("eu", S3),
    "cache.l2.secretRef": ("other-auth", {}),
    "cache.l2.tenant": ("a", {}),
    "cache.l2.loadTimeout": ("10s", {}),
    "cache.l2.loads": ("always", {}),
    "cache.l2.shareAcrossVersions": (True, {}),
    "cache.connectors": ([{"name": "TieredOffloadConnector", "weight": 5}], {}),
    "kvcached.enabled": (False, KVCACHED),
    "kvcached.maxCachedTokens": (16000, KVCACHED),
    "router.type": ("vllm-router", SMG),
    "router.image": ("mirror/router:1", {}),
    "router.replicas": (3, {}),
    "router.policy": ("roundRobin", {}),
    "router.requestTimeout": ("40m", {}),
    "router.apiKeySecretRef": ("other-key", SMG),  # vllm-router checks none and says so
    "router.service.type": ("LoadBalancer", {}),
    "router.service.port": (8080, {}),
    "router.gateway.parentRefs": ([{"name": "other"}], {}),
    "rollout.strategy": ("Recreate", {}),
    "rollout.maxSurge": (2, {}),
    "rollout.maxUnavailable": (1, {}),
    "rollout.progressDeadline": ("2h", {}),
    "rollout.paused": (True, {}),
    "scheduling.gang": ("volcano", {}),
    "scheduling.queue": ("batch", {}),
    "scheduling.colocate.topologyKey": ("rack", {}),
    "scheduling.colocate.mode": ("required", {}),
    "networkPolicy.enabled": (False, {}),
    "monitoring.enabled": ("disabled", {}),
    "suspend": (True, {}),
}
for _role in ("prefill", "decode"):
    _custom = {f"{_role}.autoscaling": {"max": 4, "metric": "custom", "metricName": "depth", "via": "hpa"}}
    CHANGES |= {
        f"{_role}.replicas": (3, {**FIXED, "ratio": None}),
        f"{_role}.autoscaling.min": (3, {}),
        f"{_role}.autoscaling.max": (9, {}),
        f"{_role}.autoscaling.metric": ("kvUsage", {}),
        f"{_role}.autoscaling.metricName": ("other", _custom),
        f"{_role}.autoscaling.target": (77, {}),
        f"{_role}.autoscaling.via": ("external", {}),
        f"{_role}.parallelism.tensor": (
            8,
            {f"{_role}.resources": {"limits": {"memory": "512Gi"}}, "decode.parallelism.data": 1},
        ),
        f"{_role}.nodes": (
            2,
            {
                f"{_role}.resources": {"limits": {"memory": "512Gi"}},
                "cache.l1.policy": "lru",
                "cache.connectors": [],
            },
        ),
        f"{_role}.parallelism.data": (2, {f"{_role}.resources": {"limits": {"memory": "512Gi"}}}),
        f"{_role}.parallelism.expert": (True, {}),
        f"{_role}.resources.limits": ({"nvidia.com/gpu": 4, "memory": "600Gi"}, {}),
        f"{_role}.resources.requests": ({"cpu": 3}, {}),
        f"{_role}.args": (["--max-num-batched-tokens", "8192"], {}),
        f"{_role}.env": ([{"name": "A", "value": "b"}], {}),
        f"{_role}.template": ({"spec": {"nodeSelector": {"pool": "other"}}}, {}),
        f"{_role}.startupTimeout": ("50m", {}),
        f"{_role}.drainTimeout": ("7m", {}),
    }
CHANGES["decode.parallelism.pipeline"] = (
    2,
    {"prefill": None, "ratio": None, "transfer": {}, "cache": {}, "decode.resources": {"limits": {"memory": "512Gi"}}},
)


def planned(raw: dict[str, Any]) -> Any:
    observed = Observed(kinds=frozenset({"PodMonitor"}))
    made = plan(KVServing.model_validate(raw), observed=observed)
    return made.objects, made.generated_secrets


def test_every_field_is_listed_once() -> None:
    listed, there = set(CHANGES) | set(ELSEWHERE), set(leaves())
    way_out = (
        "give each a line in CHANGES here, or in ELSEWHERE where no child changes, and its values in fields.py; for "
        "one that becomes a flag or a variable also its reason in doctor/explanations.py of the operator and its owner "
        "in its api/owned.py: tests/doctor/test_explanations.py and tests/plan/test_owned_settings.py ask for these"
    )
    assert not there - listed, f"new fields {sorted(there - listed)}: {way_out}"
    assert not listed - there, f"no fields any more, take their lines out: {sorted(listed - there)}"
    assert not set(CHANGES) & set(ELSEWHERE)


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_a_changed_field_changes_a_child(path: str) -> None:
    new, context = CHANGES[path]
    raw = raw_case("12")
    for key, value in context.items():
        raw = edited(raw, f"spec.{key}", value)
    assert planned(edited(raw, f"spec.{path}", new)) != planned(raw)
