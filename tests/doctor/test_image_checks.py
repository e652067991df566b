"""Where the image of a container that cannot be pulled is written, as the way out says it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doctor.world import SPEC, found, healthy, operator, spoiled, with_condition, with_pod
from tests.plan.support import edited

from kvserving_operator.doctor.checks import images
from kvserving_operator.doctor.explain import workloads
from kvserving_operator.doctor.facts import ObjectFacts, Operators
from kvserving_operator.plan.workloads import pod_template

SIDECAR = {"name": "logs", "image": "logs:1"}
TEMPLATE = {"spec": {"containers": [SIDECAR], "initContainers": [{"name": "wait", "image": "wait:1"}]}}
FACTS = healthy(edited(edited(SPEC, "prefill.template", TEMPLATE), "decode.template", TEMPLATE))
assert FACTS.live is not None
LIVE = FACTS.live


def unpulled(role: str, container: str, reason: str = "ErrImagePull") -> ObjectFacts:
    def spoil(pod: Any) -> None:
        waiting = {"name": container, "image": "x:1", "state": {"waiting": {"reason": reason}}}
        pod["status"]["initContainerStatuses"] = [waiting]

    return with_pod(FACTS, role, spoil)


WRITTEN = [
    ("decode", "engine", "spec.engine.image", "spec.decode.template.spec.imagePullSecrets"),
    ("prefill", "prefetch", "spec.engine.image", "spec.prefill.template.spec.imagePullSecrets"),
    ("prefill", "connector", "connector.image of the operator's chart", "spec.prefill.template.spec.imagePullSecrets"),
    ("decode", "logs", "spec.decode.template.spec.containers (image of logs)", "spec.decode.template.spec.image"),
    ("prefill", "wait", "spec.prefill.template.spec.initContainers (image of wait)", "spec.prefill.template.spec.i"),
    ("prefill", "mesh", "what added the container mesh to the pod", "spec.prefill.template.spec.imagePullSecrets"),
    ("router", "router", "spec.router.image", "such pods have no pull secret"),
    ("store", "store", "valkey/valkey", "spec.cache.l2.url"),
]


@pytest.mark.parametrize(("role", "container", "written", "more"), WRITTEN)
def test_an_image_that_cannot_be_pulled_is_told_with_where_it_is_written(
    role: str, container: str, written: str, more: str
) -> None:
    fix = found(unpulled(role, container))["pod-failing"].fix
    assert fix.startswith("`kubectl describe pod qwen-")
    assert f"check {written}" in fix
    assert more in fix
    wrong = found(unpulled(role, container, "InvalidImageName"))["pod-failing"].fix
    assert wrong.startswith(f"check {written}")
    name = next(p["metadata"]["name"] for p in LIVE.pods if p["metadata"]["labels"]["kvserving.dev/role"] == role)
    message = f"0 of 1 pods are ready: pod {name}: ImagePullBackOff (container {container}: image x:1)"
    told = found(with_condition(FACTS, "DecodeReady", "False", "PodFailing", message))["condition-DecodeReady"]
    assert f"check {written}" in told.fix


def test_every_container_that_is_planned_has_a_place_where_its_image_is_written() -> None:
    assert FACTS.plan is not None
    seen = set()
    for manifest in workloads(FACTS.plan.objects):
        role, pod = manifest["metadata"]["labels"]["kvserving.dev/role"], pod_template(manifest)["spec"]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            seen.add(container["name"])
            assert "not planned" not in images.source(FACTS, role, container["name"])
    assert {"engine", "connector", "logs", "wait", "router", "store"} <= seen
    assert images.source(FACTS, "decode-worker", "engine") == images.source(FACTS, "decode", "engine")


def test_the_connectors_image_is_changed_where_the_operator_of_the_object_is_installed() -> None:
    made = operator()
    made["metadata"] |= {"namespace": "ops", "annotations": {"meta.helm.sh/release-name": "mine"}}
    facts = spoiled(unpulled("decode", "connector"), operators=Operators((made,), frozenset()))
    assert "helm upgrade mine charts/kvserving-operator -n ops" in found(facts)["pod-failing"].fix
    bundled = spoiled(facts, operators=Operators((operator(),), frozenset()))
    assert "--connector-image=IMAGE in its args" in found(bundled)["pod-failing"].fix
    unknown = spoiled(facts, operators=None)
    assert "--set connector.image.repository=REPOSITORY,connector.image.tag=TAG" in found(unknown)["pod-failing"].fix
