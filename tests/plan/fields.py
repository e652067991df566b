"""Every field of the spec with values it may take, for tests that go through all of them."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from kvserving_operator.api.v1alpha1 import KVServingSpec

_ROLE: dict[str, list[Any]] = {
    "replicas": [0, 1, 5],
    "autoscaling": [
        {"min": 1, "max": 4},
        {"min": 2, "max": 8, "metric": "ttft", "target": 300, "via": "keda"},
        {"max": 3, "metric": "custom", "metricName": "queue_depth", "target": 7, "via": "external"},
        {"max": 3, "metric": "custom", "metricName": "other_depth", "target": 7, "via": "hpa"},
    ],
    "autoscaling.min": [1, 3],
    "autoscaling.max": [8, 9],
    "autoscaling.metric": ["auto", "queue", "running", "ttft", "itl", "kvUsage"],
    "autoscaling.metricName": ["queue_depth", "other_depth"],
    "autoscaling.target": [10, 90],
    "autoscaling.via": ["hpa", "keda", "external"],
    "parallelism.tensor": [1, 2, 4],
    "parallelism.pipeline": [1, 2],
    "parallelism.data": [1, 3],
    "parallelism.expert": [False, True],
    "nodes": [1, 2],
    "resources.limits": [{"memory": "700Gi"}, {"memory": "800Gi", "nvidia.com/gpu": 4}],
    "resources.requests": [{"cpu": 16}, {"cpu": 8}],
    "args": [[], ["--max-num-seqs", "64"], ["--max_num_seqs=32", "--enable-log-requests"]],
    "env": [
        [],
        [{"name": "OMP_NUM_THREADS", "value": "8"}],
        [{"name": "T", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    ],
    "template": [
        {"spec": {"nodeSelector": {"pool": "a"}}},
        {"spec": {"hostNetwork": True}},
        {"metadata": {"labels": {"a": "b"}}},
    ],
    "startupTimeout": ["10m", "45m"],
    "drainTimeout": ["30s", "10m"],
}
VALUES: dict[str, list[Any]] = {
    "model.uri": [
        "hf://Qwen/Qwen3-8B",
        "hf://Qwen/Qwen3-Next-80B-A3B-Instruct",
        "s3://models/a",
        "pvc://weights/a",
        "file:///m",
        "hf://o/u",
    ],
    "model.name": ["a", "b" * 70, "with.dots/and-slash"],
    "model.revision": ["abc", "def"],
    "model.secretRef": ["token", "other-token"],
    "model.cache.pvc": ["claim", "other-claim"],
    "model.cache.size": ["10Gi", "20Gi"],
    "model.cache.storageClass": ["fast", "slow"],
    "model.loras": [[], [{"name": "sql", "uri": "hf://o/sql"}], [{"name": "sql", "uri": "pvc://adapters/sql"}]],
    "model.facts.kind": ["attention", "slidingWindow", "recurrent"],
    "model.facts.layers": [10, 20],
    "model.facts.kvHeads": [2, 8],
    "model.facts.headDim": [64, 128],
    "model.facts.maxLength": [2048, 4096],
    "engine.version": ["0.24.0", "0.28.0", "0.30.0", "0.32.0", "0.33.0"],
    "engine.image": ["mirror/vllm:v0.33.0", "mirror/vllm:nightly"],
    "engine.device": ["gpu", "cpu"],
    "engine.connector": ["inject", "baked"],
    "engine.args": _ROLE["args"],
    "engine.env": _ROLE["env"],
    "engine.kv.blockSize": ["auto", 16, 64],
    "engine.kv.dtype": ["auto", "fp8"],
    "engine.kv.hybrid": ["auto", "enabled", "disabled"],
    "engine.kv.hashSeed": ["0", "7"],
    **{f"{role}.{key}": values for role in ("prefill", "decode") for key, values in _ROLE.items()},
    "ratio.min": ["1:4", "1:8"],
    "ratio.max": ["4:1", "8:1"],
    "transfer.onFailure": ["fail", "recompute"],
    "transfer.lease": ["30s", "2m"],
    "transfer.stagingMemory": ["0", "512Mi", "1Gi"],
    "transfer.rdma.mode": ["auto", "disabled", "required"],
    "transfer.rdma.resource": ["rdma/hca", "rdma/other"],
    "transfer.rdma.claimTemplate": ["nic", "other-nic"],
    "transfer.verify.interval": ["5m", "10m"],
    "cache.l1.size": ["4Gi", "8Gi"],
    "cache.l1.policy": ["lru", "arc"],
    "cache.l1.roles": [["prefill"], ["decode"], ["prefill", "decode"]],
    "cache.l1.owner": ["auto", "scheduler", "worker"],
    "cache.l2.type": ["none", "valkey", "filesystem", "s3", "mooncake", "external"],
    "cache.l2.size": ["8Gi", "100Gi"],
    "cache.l2.maxUsage": ["85%", "50%"],
    "cache.l2.replicas": [1, 3],
    "cache.l2.roles": [["prefill"], ["prefill", "decode"]],
    "cache.l2.storageClass": ["fast", "slow"],
    "cache.l2.url": ["s3://bucket/path", "redis://kv.cache.svc:6379", "mooncake://10.0.0.1:50051"],
    "cache.l2.endpoint": ["https://s3.example.org", "https://other.example.org:9000"],
    "cache.l2.region": ["eu", "us"],
    "cache.l2.secretRef": ["store", "other-store"],
    "cache.l2.tenant": ["a", "b"],
    "cache.l2.loadTimeout": ["10s", "30s"],
    "cache.l2.loads": ["auto", "always", "never"],
    "cache.l2.shareAcrossVersions": [False, True],
    "cache.connectors": [
        [],
        [{"name": "NixlConnector", "weight": 50}],
        [{"name": "TieredOffloadConnector", "weight": 3}],
        [{"name": "SimpleCPUOffloadConnector", "weight": 2}, {"name": "LMCacheMPConnector", "weight": 1}],
    ],
    "kvcached.enabled": [False, True],
    "kvcached.maxCachedTokens": [1000, 16000],
    "router.type": ["smg", "vllm-router", "external", "none"],
    "router.image": ["mirror/router:1", "mirror/router:2"],
    "router.replicas": [1, 3],
    "router.policy": ["cacheAware", "powerOfTwo", "roundRobin"],
    "router.requestTimeout": ["10m", "30m"],
    "router.apiKeySecretRef": ["key", "other-key"],
    "router.service.type": ["ClusterIP", "NodePort", "LoadBalancer"],
    "router.service.port": [80, 8080],
    "router.gateway.parentRefs": [[], [{"name": "public"}]],
    "router.gateway.inferencePool": [False, True],
    "rollout.strategy": ["Paired", "Recreate"],
    "rollout.maxSurge": [0, 1, 2],
    "rollout.maxUnavailable": [0, 1],
    "rollout.progressDeadline": ["2h", "3h"],
    "rollout.paused": [False, True],
    "scheduling.gang": ["none", "auto", "volcano", "coscheduling"],
    "scheduling.queue": ["serving", "batch"],
    "scheduling.colocate.topologyKey": ["zone", "rack"],
    "scheduling.colocate.mode": ["preferred", "required"],
    "networkPolicy.enabled": [True, False],
    "monitoring.enabled": ["auto", "enabled", "disabled"],
    "suspend": [False, True],
}


def leaves(model: type[BaseModel] = KVServingSpec, prefix: str = "") -> Iterator[str]:
    """Path of every field of the spec that holds no section itself, in camelCase."""
    for field in model.model_fields.values():
        path = f"{prefix}{field.alias}"
        section = _section(field.annotation)
        if section is None:
            yield path
        else:
            yield from leaves(section, f"{path}.")


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((found for part in typing.get_args(annotation) if (found := _section(part))), None)
    return None
