"""Children whose label, name or end is contested."""

from __future__ import annotations

from typing import Any

from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.operator.objects import children, condition, eventually, path_of, serving
from e2e.operator.waiting import settle, wait_planned

OTHER_MODEL = {"uri": "hf://Qwen/Qwen3-4B"}


def decodes(plane: ControlPlane, namespace: str) -> dict[str, Json]:
    """Deployments of decode by name."""
    return {
        name: child
        for (kind, name), child in children(plane, namespace).items()
        if kind == "Deployment" and child["metadata"]["labels"]["kvserving.dev/role"] == "decode"
    }


def deployment(namespace: str, name: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"


def test_an_engine_deployment_that_lost_our_label_is_known_again_and_goes_with_its_revision(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start("--no-elect")
    settle(plane, serving(namespace))
    [name] = decodes(plane, namespace)
    plane.api.merge(deployment(namespace, name), {"metadata": {"labels": {"kvserving.dev/name": None}}})
    eventually(lambda: list(decodes(plane, namespace)), lambda names: names == [name], what="the label again")
    wait_planned(plane, namespace)
    plane.api.merge(path_of(namespace), {"spec": {"model": OTHER_MODEL}})
    wait_planned(plane, namespace)
    assert name not in decodes(plane, namespace)


def test_going_back_to_a_revision_that_is_being_deleted_keeps_the_one_that_serves(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    start("--no-elect", "--resync=1")
    obj = settle(plane, serving(namespace))
    [first] = decodes(plane, namespace)
    plane.api.merge(deployment(namespace, first), {"metadata": {"finalizers": ["example.dev/held"]}})
    plane.api.merge(path_of(namespace), {"spec": {"model": OTHER_MODEL}})
    eventually(
        lambda: {name: "deletionTimestamp" in found["metadata"] for name, found in decodes(plane, namespace).items()},
        lambda found: len(found) == 2 and found[first],
        what="the former revision is being deleted",
    )
    [second] = [name for name in decodes(plane, namespace) if name != first]
    plane.api.merge(path_of(namespace), {"spec": {"model": obj["spec"]["model"]}})
    plane.api.wait(
        path_of(namespace),
        lambda found: condition(found, "DecodeReady").get("reason") == "WaitingForDeletion",
        what="it waits for the end of the former revision",
    )
    proxy.wait_quiet(2)
    assert "deletionTimestamp" not in decodes(plane, namespace)[second]["metadata"]
    assert condition(plane.api.get(path_of(namespace)), "Available")["status"] == "True"
    plane.api.merge(deployment(namespace, first), {"metadata": {"finalizers": None}})
    wait_planned(plane, namespace)
    assert list(decodes(plane, namespace)) == [first]


def test_an_object_whose_service_is_a_child_of_another_is_told_and_gives_no_address(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start("--no-elect")
    settle(plane, serving(namespace, "a", cache={"l1": {"size": "8Gi"}, "l2": {"size": "64Gi"}}))
    plane.api.create(serving(namespace, "a-store"))
    found = plane.api.wait(
        path_of(namespace, "a-store"),
        lambda found: condition(found, "Degraded").get("reason") == "OwnedByOther",
        what="the taken name is told",
    )
    assert found is not None
    assert "Service" in condition(found, "Degraded")["message"]
    assert condition(found, "Available")["status"] == "False"
    assert condition(found, "Stalled")["status"] == "True"
    assert "url" not in found["status"]
    assert condition(plane.api.get(path_of(namespace, "a")), "Ready")["status"] == "True"
