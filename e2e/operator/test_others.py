"""Others on the same cluster: their objects, fields, values, scalers, policies and kinds."""

from __future__ import annotations

import time
from typing import Any

import pytest
from e2e.controlplane.api import MERGE, ApiError, Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.operator.objects import (
    children,
    collections,
    condition,
    eventually,
    path_of,
    planned,
    serving,
)
from e2e.operator.waiting import settle, wait_for, wait_for_ready


def test_foreign_values_in_our_fields_are_restored_and_foreign_fields_stay(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    settle(plane, serving(namespace))
    service = f"/api/v1/namespaces/{namespace}/services/qwen"
    plane.api.merge(
        service,
        {"metadata": {"labels": {"team": "blue", "app.kubernetes.io/name": "theirs"}, "annotations": {"note": "kept"}}},
        fieldManager="someone",
    )
    restored = plane.api.wait(
        service,
        lambda o: o is not None and o["metadata"]["labels"]["app.kubernetes.io/name"] == "kvserving",
        what="our label",
        timeout=10,
    )
    assert restored is not None
    assert restored["metadata"]["labels"]["team"] == "blue"
    assert restored["metadata"]["annotations"]["note"] == "kept"
    decode = next(name for kind, name in children(plane, namespace) if kind == "Deployment" and "decode" in name)
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{decode}"
    plane.api.merge(path, {"spec": {"replicas": 5, "minReadySeconds": 3}}, fieldManager="kubectl")
    back = plane.api.wait(
        path, lambda o: o is not None and o["spec"]["replicas"] == 2, what="2 replicas again", timeout=10
    )
    assert back is not None
    assert back["spec"]["minReadySeconds"] == 3
    told = eventually(
        lambda: plane.api.items(f"/api/v1/namespaces/{namespace}/events", fieldSelector="reason=EditPutBack"),
        lambda found: len(found) == 2,
        what="an event of each edit",
    )
    begins = "set again, as someone else changed it (change the KVServing instead): "
    assert {event["message"] for event in told} == {
        f"{begins}Service qwen, metadata.labels.app.kubernetes.io/name",
        f"{begins}Deployment {decode}, spec.replicas",
    }


def test_a_port_of_a_service_that_someone_edits_is_restored(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace)
    settle(plane, obj)
    service = f"/api/v1/namespaces/{namespace}/services/qwen"
    before = plane.api.get(service)["spec"]["ports"]
    plane.api.merge(
        service, {"spec": {"ports": [{**before[0], "port": 81}, *before[1:]]}}, fieldManager="kubectl-patch"
    )
    plane.api.wait(service, lambda o: o is not None and o["spec"]["ports"] == before, what="our ports", timeout=10)
    wait_for(plane, obj, "Stalled", "False")


def test_our_label_taken_from_a_child_comes_back(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    settle(plane, serving(namespace))
    path = f"/api/v1/namespaces/{namespace}/configmaps/qwen-router-launcher"
    uid = plane.api.get(path)["metadata"]["uid"]
    plane.api.merge(path, {"metadata": {"labels": {"kvserving.dev/name": None}}})
    found = plane.api.wait(
        path,
        lambda o: o is not None and "kvserving.dev/name" in o["metadata"]["labels"],
        what="the label again",
        timeout=10,
    )
    assert found is not None
    assert found["metadata"]["uid"] == uid


def test_replicas_that_a_scaler_sets_are_never_fought(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--no-elect", "--resync=0.5")
    settle(plane, serving(namespace, decode={"autoscaling": {"min": 1, "max": 9, "via": "external"}}))
    path = f"/apis/kvserving.dev/v1alpha1/namespaces/{namespace}/kvservingroles/qwen-decode"
    assert plane.api.get(path)["spec"]["replicas"] == 1
    plane.api.merge(f"{path}/scale", {"spec": {"replicas": 3}}, fieldManager="hpa")
    wait_for_ready(plane, namespace, "decode", "3/3")
    told = plane.api.wait(
        f"{path}", lambda o: o is not None and o["status"]["replicas"] == 3, what="3 in the status", timeout=10
    )
    assert told is not None
    assert told["status"]["selector"] == "kvserving.dev/name=qwen,kvserving.dev/role=decode"
    operator.kill()
    operator = start("--no-elect", "--resync=0.5")
    resyncs = operator.metric("kvserving_operator_resyncs_total")
    quiet = time.monotonic()
    eventually(lambda: operator.metric("kvserving_operator_resyncs_total"), lambda n: n >= resyncs + 3, what="resyncs")
    assert plane.api.get(path)["spec"]["replicas"] == 3
    assert [r for r in proxy.writes(since=quiet) if r.info.resource in ("deployments", "kvservingroles")] == []


def test_what_a_scaler_asks_for_outlives_a_rollout_to_another_revision(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace, decode={"autoscaling": {"min": 1, "max": 9, "via": "external"}})
    first = settle(plane, obj)["status"]["revision"]
    path = f"/apis/kvserving.dev/v1alpha1/namespaces/{namespace}/kvservingroles/qwen-decode"
    plane.api.merge(f"{path}/scale", {"spec": {"replicas": 3}}, fieldManager="hpa")
    wait_for_ready(plane, namespace, "decode", "3/3")
    plane.api.merge(path_of(namespace), {"spec": {"engine": {"version": "0.32.0"}}})
    plane.api.wait(
        path_of(namespace),
        lambda o: (
            o is not None
            and o["status"].get("revision") != first
            and "rollout" not in o["status"]
            and o["status"]["roles"]["decode"]["summary"] == "3/3"
        ),
        what="3 decodes of the new revision",
        timeout=60,
    )
    assert plane.api.get(path)["spec"]["replicas"] == 3


@pytest.mark.parametrize("labelled", [False, True])
def test_a_foreign_service_of_the_same_name_is_not_seized(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, labelled: bool
) -> None:
    labels = {"kvserving.dev/name": "qwen"} if labelled else {"app": "theirs"}
    foreign = plane.api.create({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "qwen", "namespace": namespace, "labels": labels},
        "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]},
    })  # fmt: skip
    start()
    obj = serving(namespace)
    plane.api.create(obj)
    found = wait_for(plane, obj, "Degraded")
    told = condition(found, "Degraded")
    assert told["reason"] == "OwnedByOther"
    assert f"Service {namespace}/qwen exists and belongs to no controller" in told["message"]
    assert condition(found, "Stalled")["status"] == "True"
    wait_for(plane, obj, "TransferVerified")
    assert condition(plane.api.get(path_of(namespace)), "RouterReady")["reason"] == "OwnedByOther"
    live = plane.api.get(f"/api/v1/namespaces/{namespace}/services/qwen")
    assert live["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]
    plane.api.delete(f"/api/v1/namespaces/{namespace}/services/qwen")
    found = wait_for(plane, obj, "Ready", timeout=60)
    assert condition(found, "Degraded")["status"] == "False"


def test_no_object_that_has_a_childs_name_is_written_even_where_no_field_conflicts(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    obj = serving(namespace)
    bare: dict[str, Json] = {"Role": {"rules": []}, "ConfigMap": {}, "ServiceAccount": {}}
    foreign = {}
    for manifest in planned(plane, obj, own_namespace=namespace).objects:
        if (kind := str(manifest["kind"])) in bare:
            metadata = {"name": manifest["metadata"]["name"], "namespace": namespace}
            made = plane.api.create({"apiVersion": manifest["apiVersion"], "kind": kind, "metadata": metadata,
                                     **bare[kind]})  # fmt: skip
            foreign[kind] = made["metadata"]
    assert set(foreign) == set(bare)
    start()
    plane.api.create(obj)
    found = wait_for(plane, obj, "Degraded")
    assert condition(found, "Degraded")["reason"] == "OwnedByOther"
    wait_for(plane, obj, "TransferVerified")
    for kind, path in collections(namespace):
        if kind in foreign:
            live = plane.api.get(f"{path}/{foreign[kind]['name']}")
            assert live["metadata"]["resourceVersion"] == foreign[kind]["resourceVersion"], kind


def test_a_status_field_of_another_manager_stays_and_costs_no_write(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, proxy: FaultProxy
) -> None:
    start("--resync=2")
    obj = serving(namespace)
    plane.api.create(obj)
    wait_for(plane, obj, "Ready")
    theirs = {**obj, "spec": {}, "status": {"errors": [{"path": "theirs", "message": "theirs"}]}}
    plane.api.request("PATCH", path_of(namespace) + "/status", theirs, content_type=MERGE)
    proxy.wait_quiet(1.5)
    proxy.reset()
    proxy.wait(
        lambda records: sum(r.info.full_resource == "kvservings" and r.info.verb == "list" for r in records) >= 3,
        what="three resyncs",
    )
    assert proxy.writes() == []


def test_an_engine_version_that_someone_writes_into_the_status_starts_no_rollout(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, proxy: FaultProxy
) -> None:
    start()
    obj = serving(namespace)
    plane.api.create(obj)
    before = wait_for(plane, obj, "Ready")
    proxy.wait_quiet(1)
    proxy.reset()
    edited = {"status": {"engine": {"version": "0.30.0"}}}
    plane.api.request("PATCH", path_of(namespace) + "/status", edited, content_type=MERGE)
    engine = before["status"]["engine"]
    eventually(
        lambda: plane.api.get(path_of(namespace))["status"]["engine"], lambda found: found == engine, what="undone"
    )
    after = plane.api.get(path_of(namespace))
    assert after["status"]["revision"] == before["status"]["revision"]
    proxy.wait_quiet(1.5)
    assert {record.info.full_resource for record in proxy.writes()} == {"kvservings/status"}


def test_what_a_policy_refuses_is_told_with_its_message_and_healed_when_the_policy_goes(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    limit = {
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small", "namespace": namespace},
        "spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}]},
    }  # fmt: skip
    plane.api.create(limit)
    start()
    obj = serving(namespace, cache={"l2": {"type": "filesystem", "size": "4Gi"}})
    plane.api.create(obj)
    found = wait_for(plane, obj, "Degraded")
    told = condition(found, "Degraded")
    assert told["reason"] == "ApplyFailed"
    assert "maximum storage usage per PersistentVolumeClaim is 1Gi" in told["message"]
    assert "grant" not in told["message"]
    assert condition(found, "StorageReady")["status"] == "False"
    plane.api.delete(f"/api/v1/namespaces/{namespace}/limitranges/small")
    wait_for(plane, obj, "Ready", timeout=60)


def test_an_optional_kind_may_be_installed_and_removed_while_the_operator_runs(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--resync=2")
    obj = serving(namespace, monitoring={"enabled": "enabled"})
    plane.api.create(obj)
    wait_for(plane, obj, "Ready")
    assert condition(plane.api.get(path_of(namespace)), "Degraded")["reason"] == "KindMissing"
    crd = plane.api.create({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "podmonitors.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}}}],
        },
    })  # fmt: skip
    monitors = f"/apis/monitoring.coreos.com/v1/namespaces/{namespace}/podmonitors"

    def made() -> dict[str, str]:
        try:
            found = plane.api.get(monitors)["items"]
            return {item["metadata"]["name"]: item["metadata"]["uid"] for item in found}
        except ApiError as error:
            # A new kind is not served at once.
            if error.status not in (404, 429):
                raise
            return {}

    try:
        before = eventually(made, lambda found: len(found) == 2, what="the monitors", timeout=60)
        plane.api.delete(f"{monitors}/{min(before)}")
        after = eventually(made, lambda found: len(found) == 2, what="the monitors again", timeout=60)
        assert after[min(before)] != before[min(before)]
        wait_for(plane, obj, "Degraded", "False", timeout=60)
    finally:
        plane.api.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}")
    wait_for(plane, obj, "Degraded", timeout=60)
    assert operator.process is not None
    assert operator.process.poll() is None


def test_an_image_that_someone_edits_in_a_pod_is_restored_and_starts_no_rollout(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace)
    before = settle(plane, obj)
    (name,) = [name for kind, name in children(plane, namespace) if kind == "Deployment" and "-decode-" in name]
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    edited = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "example.com/other:1"}]
    plane.api.request("PATCH", path, edited, content_type="application/json-patch+json")
    image = before["status"]["engine"]["image"]
    eventually(
        lambda: plane.api.get(path)["spec"]["template"]["spec"]["containers"][0]["image"],
        lambda found: found == image,
        what="the image is restored",
    )
    after = wait_for(plane, obj, "Ready")
    assert (after["status"]["revision"], after["status"]["engine"]["image"]) == (before["status"]["revision"], image)
    assert [n for kind, n in children(plane, namespace) if kind == "Deployment" and "-decode-" in n] == [name]


def test_a_child_given_to_another_object_by_its_label_comes_back(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace)
    settle(plane, obj)
    (name,) = [name for kind, name in children(plane, namespace) if kind == "Deployment" and "-decode-" in name]
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    for value in ("another", ""):
        plane.api.merge(path, {"metadata": {"labels": {"kvserving.dev/name": value}}})
        eventually(
            lambda: plane.api.get(path)["metadata"]["labels"]["kvserving.dev/name"],
            lambda found: found == "qwen",
            what="the label is restored",
        )
