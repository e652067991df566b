"""What an object says of its cluster alone is told where it runs on one machine, and nothing of its defaults."""

from __future__ import annotations

from typing import Any

from tests.plan.support import LOCAL, pair, render

from kvserving_operator.plan.types import CLUSTER, Site

FOR_A_CLUSTER: dict[str, Any] = {
    "router": {
        "replicas": 2,
        "service": {"type": "LoadBalancer"},
        "gateway": {"parentRefs": [{"name": "public"}]},
    },
    "scheduling": {"colocate": {"topologyKey": "topology.kubernetes.io/zone"}},
    "transfer": {"rdma": {"mode": "required", "resource": "rdma/hca"}},
}


def told(spec: dict[str, Any], site: Site = LOCAL) -> list[str]:
    notices = render(spec, site=site).plan.notices
    return [notice.path for notice in notices if notice.reason.value == "NotOnOneMachine"]


def test_each_setting_that_does_nothing_on_one_machine_is_named() -> None:
    scaled = pair(**FOR_A_CLUSTER)
    scaled["decode"] = {"autoscaling": {"min": 1, "max": 4}}
    assert told(scaled) == [
        "spec.decode.autoscaling",
        "spec.transfer.rdma.mode",
        "spec.router.replicas",
        "spec.router.service.type",
        "spec.router.gateway",
        "spec.scheduling.colocate",
    ]
    assert told(scaled, CLUSTER) == []


def test_a_class_of_storage_and_a_role_without_engines_are_named() -> None:
    stored = pair(
        model={"uri": "hf://Qwen/Qwen3-8B", "cache": {"size": "20Gi", "storageClass": "fast"}},
        cache={"l2": {"type": "filesystem", "size": "1Gi", "storageClass": "fast"}},
    )
    stored["decode"] = {"replicas": 0}
    assert told(stored) == ["spec.decode.replicas", "spec.model.cache.storageClass", "spec.cache.l2.storageClass"]
    assert told(stored, CLUSTER) == []


def test_defaults_and_what_says_the_same_are_not_named() -> None:
    assert told(pair()) == []
    assert (
        told(pair(router={"replicas": 1, "service": {"type": "ClusterIP"}}, transfer={"rdma": {"mode": "auto"}})) == []
    )
