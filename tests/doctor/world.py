"""A healthy object in a healthy cluster, as facts, and ways to spoil one thing of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.control.bodies import live, stored
from tests.plan.support import pair

from kvserving_operator import __version__
from kvserving_operator.api.schema import object_schema
from kvserving_operator.control.reconcile import read
from kvserving_operator.doctor import checks
from kvserving_operator.doctor.facts import Engine, Keys, Live, ObjectFacts, Operators, Series
from kvserving_operator.doctor.findings import Finding
from kvserving_operator.plan.secret_refs import needed
from kvserving_operator.plan.types import CLUSTER, Observed
from kvserving_operator.plan.workloads import pod_template

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SPEC: dict[str, Any] = {
    "model": {"uri": "hf://Qwen/Qwen3-8B", "revision": COMMIT, "cache": {"pvc": "weights"}, "secretRef": "hub"},
    "engine": {"version": "0.33.0"},
    "transfer": {"rdma": {"resource": "rdma/hca"}},
    "cache": {"l1": {"size": "64Gi"}, "l2": {"size": "200Gi"}},
    **pair(),
}
"""An object about which there is nothing to say."""

_GOOD = """
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True"} 1
# TYPE vllm:request_success counter
vllm:request_success_total{finished_reason="stop"} 900
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total 3
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 2
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting 1
# TYPE kvserving:receipts counter
kvserving:receipts_total 4
# TYPE vllm:external_prefix_cache_queries counter
vllm:external_prefix_cache_queries_total 100000
# TYPE vllm:external_prefix_cache_hits counter
vllm:external_prefix_cache_hits_total 99000
# TYPE kvserving:store_misses counter
kvserving:store_misses_total{reason="absent"} 70
kvserving:store_misses_total{reason="denied"} 0
"""

_CONDITIONS = ("ConfigValid", "PrefillReady", "DecodeReady", "RouterReady", "StorageReady", "TransferVerified")


def healthy(spec: Mapping[str, Any] | None = None) -> ObjectFacts:
    """An object of ``spec`` (``SPEC``) whose children, pods and engines are as planned."""
    serving = stored(dict(SPEC if spec is None else spec), uid="u1")
    reading = read(serving, CLUSTER, Observed())
    assert reading.plan is not None
    assert reading.serving is not None, reading.faults
    plan = reading.plan
    children = [copy.deepcopy(_settled(live(dict(manifest), serving))) for manifest in plan.objects]
    pods = [_pod(child, f"{child['metadata']['name']}-a") for child in children if pod_template(child)]
    conditions = [
        {"type": kind, "status": "True", "reason": "Ready", "message": "fine"} for kind in (*_CONDITIONS, "Ready")
    ]
    status = {
        "observedGeneration": 1,
        "conditions": conditions,
        "engine": {"version": plan.profile.engine_version, "image": plan.profile.engine_image},
    }
    body = {
        "metadata": {"name": "qwen", "namespace": "prod", "uid": "u1", "generation": 1},
        "spec": serving.spec,
        "status": status,
    }
    engines = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["labels"]["kvserving.dev/role"] in _ENGINES]
    found = Live(
        body=body,
        children=tuple(children),
        pods=tuple(pods),
        nodes=(node("gpu-1"), node("gpu-2")),
        secrets={name: Keys(need.keys) for name, need in needed(plan.objects).items()},
        claims={"weights": {"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}},
        engines={name: Engine(plan.profile.engine_version, Series.parse(_GOOD)) for name in engines},
        schema=object_schema(),
        operators=Operators((operator(),), frozenset()),
    )
    return ObjectFacts("qwen", "prod", reading.serving, plan, (), found)


_ENGINES = ("prefill", "decode")


def node(name: str, **changes: Any) -> dict[str, Any]:
    """A node with eight GPUs that takes pods; ``changes`` replace amounts."""
    allocatable = {"cpu": "64", "memory": "900Gi", "nvidia.com/gpu": "8", "rdma/hca": "8", **changes}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "allocatable": {key: value for key, value in allocatable.items() if value is not None},
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"architecture": "amd64", "kernelVersion": "6.8.0-40-generic"},
        },
    }


def operator(name: str = "op", version: str = __version__, available: int = 1, *args: str) -> dict[str, Any]:
    """A Deployment of the operator."""
    marks = {"app.kubernetes.io/name": "kvserving-operator", "app.kubernetes.io/version": version}
    return {
        "metadata": {"name": name, "namespace": "kvserving-system", "labels": marks},
        "spec": {"template": {"spec": {"containers": [{"args": ["operator", "run", *args]}]}}},
        "status": {"availableReplicas": available},
    }


CLASS = {"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
"""The default storage class of a cluster."""


def _settled(child: dict[str, Any]) -> dict[str, Any]:
    if pod_template(child):
        count = child["spec"].get("replicas", 1)
        child["status"] = {
            "observedGeneration": 1,
            "replicas": count,
            "readyReplicas": count,
            "updatedReplicas": count,
        }
    return child


def _pod(child: Mapping[str, Any], name: str) -> dict[str, Any]:
    template: dict[str, Any] = copy.deepcopy(dict(pod_template(child)))
    for container in template["spec"]["containers"]:
        for entry in container.get("env") or ():
            if "fieldRef" in (entry.get("valueFrom") or {}):
                entry["valueFrom"]["fieldRef"]["apiVersion"] = "v1"  # as the apiserver adds it
    status = {
        "podIP": "10.0.0.7",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [
            {"name": container["name"], "imageID": "docker.io/vllm@sha256:" + "a" * 64, "restartCount": 0, "state": {}}
            for container in template["spec"]["containers"]
        ],
    }
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "labels": template["metadata"]["labels"],
        "ownerReferences": [{"name": child["metadata"]["name"], "controller": True}],
    }
    return {"metadata": metadata, "spec": template["spec"], "status": status}


Spoil = Callable[[Any], object]


def spoiled(facts: ObjectFacts, **changes: Any) -> ObjectFacts:
    """``facts`` with fields of ``live`` replaced."""
    assert facts.live is not None
    return replace(facts, live=replace(facts.live, **changes))


def with_pod(facts: ObjectFacts, role: str, spoil: Spoil) -> ObjectFacts:
    """``facts`` after ``spoil`` changed the pod of a role."""
    assert facts.live is not None
    pods = copy.deepcopy(facts.live.pods)
    spoil(next(pod for pod in pods if pod["metadata"]["labels"]["kvserving.dev/role"] == role))
    return spoiled(facts, pods=pods)


def with_child(facts: ObjectFacts, kind: str, role: str, spoil: Spoil) -> ObjectFacts:
    """``facts`` after ``spoil`` changed the child of a kind and role."""
    assert facts.live is not None
    children = copy.deepcopy(facts.live.children)
    marks = [(child, child["metadata"]["labels"].get("kvserving.dev/role")) for child in children]
    spoil(next(child for child, found in marks if child["kind"] == kind and found == role))
    return spoiled(facts, children=children)


def with_series(facts: ObjectFacts, role: str, text: str, *, drop: str = "", version: str = "") -> ObjectFacts:
    """``facts`` where the engine of a role exports ``text`` besides, and nothing whose name holds ``drop``."""
    assert facts.live is not None
    kept = "\n".join(line for line in _GOOD.splitlines() if not drop or drop not in line)
    engines = {
        name: Engine(version or engine.version, Series.parse(f"{kept}\n{text}\n")) if f"-{role}-" in name else engine
        for name, engine in facts.live.engines.items()
    }
    return spoiled(facts, engines=engines)


def with_condition(facts: ObjectFacts, kind: str, status: str, reason: str, message: str) -> ObjectFacts:
    """``facts`` with one condition of the object replaced or added."""
    assert facts.live is not None
    body: Any = copy.deepcopy(facts.live.body)
    others = [c for c in body["status"]["conditions"] if c["type"] != kind]
    told = {"type": kind, "status": status, "reason": reason, "message": message}
    body["status"]["conditions"] = [*others, told]
    return spoiled(facts, body=body)


def container(pod: Any) -> Any:
    """The engine, router or store container of a pod or workload."""
    spec = pod["spec"]["template"]["spec"] if "template" in pod["spec"] else pod["spec"]
    return spec["containers"][0]


def found(facts: ObjectFacts) -> dict[str, Finding]:
    """Findings by check; a check that says two things is given by its last."""
    return {finding.check: finding for finding in checks.of_object(facts)}


def env(p: Any, name: str, value: str | None) -> None:
    """Set a variable of a pod's or workload's container, or remove it."""
    entries = container(p)["env"]
    entries[:] = [entry for entry in entries if entry["name"] != name]
    if value is not None:
        entries.append({"name": name, "value": value})


def tainted(name: str) -> dict[str, Any]:
    """A node for pods alone that tolerate its devices' taint."""
    return {**node(name), "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}}


TAINTED = (tainted("a"), tainted("b"), node("c", **{"nvidia.com/gpu": None, "rdma/hca": None}))
"""Nodes that are tainted for engines; router and store have one of their own."""
