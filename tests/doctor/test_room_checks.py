"""The way out of a pod that finds no node names the fields that decide what it asks for."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doctor.world import SPEC, found, healthy, with_condition, with_pod
from tests.plan.support import edited

AMOUNTS = {"requests": {"memory": "500Gi"}, "limits": {"cpu": "96", "memory": "500Gi"}}
SEVERAL: dict[str, Any] = {
    **SPEC,
    "prefill": {"replicas": 2, "resources": AMOUNTS},
    "decode": {"replicas": 2, "parallelism": {"tensor": 2}},
    "cache": {"l1": {"size": "64Gi"}, "l2": {"size": "200Gi", "replicas": 2}},
}
FACTS = healthy(SEVERAL)
LEAST = healthy(edited(SPEC, "router", {"replicas": 1}))
"""An object that asks for one of everything."""
ROLES = {"prefill": "PrefillReady", "decode": "DecodeReady", "router": "RouterReady", "store": "StorageReady"}


@pytest.mark.parametrize(
    ("role", "lacking", "named", "unnamed"),
    [
        ("prefill", "2 Insufficient memory", ["spec.prefill.resources.requests.memory (500Gi)", "spec.cache.l1.size",
                                              "spec.prefill.replicas", "maxSurge"], ["parallelism", "decode"]),
        ("prefill", "1 Insufficient cpu.", ["spec.prefill.resources.limits.cpu (96)"], ["l1.size", "parallelism"]),
        ("decode", "Insufficient cpu", ["spec.decode.resources.requests.cpu"], ["prefill"]),
        ("decode", "2 Insufficient nvidia.com/gpu.", ["spec.decode.parallelism", "add nodes"], ["resources", "l1"]),
        ("decode", "didn't match Pod's node affinity/selector", ["spec.decode.template.spec"], ["parallelism"]),
        ("router", "2 Insufficient cpu", ["spec.router.replicas", "spec.prefill.resources, spec.decode.resources"],
         ["parallelism", "maxSurge", "spec.router.resources"]),
        ("router", "1 node(s) had untolerated taint {x: }", ["a node without taints"], ["parallelism", "template"]),
        ("store", "2 Insufficient memory", ["spec.cache.l2.size"], ["parallelism", "maxSurge"]),
        ("store", "2 Insufficient cpu", ["spec.cache.l2.replicas", "spec.decode.resources"], ["maxSurge", "l2.size"]),
    ],
)  # fmt: skip
def test_a_lack_of_room_is_told_with_the_fields_of_the_role_that_lacks_it(
    role: str, lacking: str, named: list[str], unnamed: list[str]
) -> None:
    message = f"0/2 nodes are available: {lacking}"

    def spoil(pod: Any) -> None:
        told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod["status"] = {"conditions": [told]}

    kind = ROLES[role]
    of_pod = found(with_pod(FACTS, role, spoil))["unschedulable"].fix
    said = f"pod gone: {message}"
    of_condition = found(with_condition(FACTS, kind, "False", "InsufficientCapacity", said))[f"condition-{kind}"].fix
    assert of_pod == of_condition
    for words in named:
        assert words in of_pod, of_pod
    for words in unnamed:
        assert words not in of_pod, of_pod


@pytest.mark.parametrize("role", ["prefill", "decode", "router", "store"])
@pytest.mark.parametrize("lacking", ["1 Insufficient nvidia.com/gpu", "1 Insufficient cpu"])
def test_what_is_at_its_least_is_not_to_be_lowered(role: str, lacking: str) -> None:
    message = f"0/1 nodes are available: {lacking}."
    named = (
        next(p for p in LEAST.live.pods if p["metadata"]["labels"]["kvserving.dev/role"] == role) if LEAST.live else {}
    )
    said = f"pod {named['metadata']['name']}: {message}"
    kind = ROLES[role]
    fix = found(with_condition(LEAST, kind, "False", "InsufficientCapacity", said))[f"condition-{kind}"].fix
    assert fix.startswith("add nodes of the kind")
    for field in ("replicas", "parallelism"):
        assert field not in fix, fix


def test_the_pod_that_a_condition_names_decides_whose_fields_are_told() -> None:
    assert FACTS.live is not None
    router = next(p for p in FACTS.live.pods if p["metadata"]["labels"]["kvserving.dev/role"] == "router")
    message = f"pod {router['metadata']['name']}: 0/2 nodes are available: 2 Insufficient cpu"
    told = found(with_condition(FACTS, "TransferVerified", "False", "InsufficientCapacity", message))
    assert "spec.router.replicas" in told["condition-TransferVerified"].fix
