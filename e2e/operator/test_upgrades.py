"""Another release of the operator was here before: older or newer, with other fields, children and words."""

from __future__ import annotations

from typing import Any

from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.operator.objects import children, condition, differences, eventually, path_of, planned, serving
from e2e.operator.waiting import pods, settle, wait_for

from kvserving_operator.control import children as child_rules
from kvserving_operator.control.config import FIELD_MANAGER
from kvserving_operator.control.observe import serving_of


def applied(plane: ControlPlane, namespace: str, kind: str, part: str) -> Json:
    """Return the body that this operator applies for one child."""
    obj = plane.api.get(path_of(namespace))
    wants = planned(plane, obj, own_namespace=namespace)
    manifest = next(m for m in wants.objects if m["kind"] == kind and part in str(m["metadata"]["name"]))
    return dict(child_rules.wanted(serving_of(obj), manifest, None).body)


def test_fields_and_children_that_another_release_set_disappear(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start()
    settle(plane, serving(namespace))
    assert operator.stop() == 0
    service = applied(plane, namespace, "Service", "qwen")
    service["metadata"]["annotations"] |= {"kvserving.dev/applied": "of-the-former", "kvserving.dev/former": "x"}
    service["spec"] = {**service["spec"], "publishNotReadyAddresses": True}
    plane.api.apply(service, manager=FIELD_MANAGER)
    decode = applied(plane, namespace, "Deployment", "decode")
    container = decode["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [*container["env"], {"name": "FORMER", "value": "x"}]
    plane.api.apply(decode, manager=FIELD_MANAGER)
    former = applied(plane, namespace, "ConfigMap", "launcher")
    former["metadata"]["name"] = "qwen-former"
    plane.api.apply(former, manager=FIELD_MANAGER)
    assert len(differences(plane, namespace)) >= 3
    operator.start()
    eventually(lambda: differences(plane, namespace), lambda left: not left, what="children as planned")
    live = children(plane, namespace)
    assert ("ConfigMap", "qwen-former") not in live
    assert "kvserving.dev/former" not in live["Service", "qwen"]["metadata"]["annotations"]
    assert not live["Service", "qwen"]["spec"].get("publishNotReadyAddresses")
    env = live["Deployment", decode["metadata"]["name"]]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert "FORMER" not in {entry["name"] for entry in env}


def test_a_release_that_plans_the_same_pods_restarts_none(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start()
    settle(plane, serving(namespace))
    assert operator.stop() == 0
    before = pods(plane, namespace)
    # The former release had another digest and one more label on every workload, and the same pod templates.
    for part in ("prefill", "decode", "router"):
        body = applied(plane, namespace, "Deployment", part)
        body["metadata"]["annotations"] |= {"kvserving.dev/applied": "of-the-former"}
        body["metadata"]["labels"] = {**body["metadata"]["labels"], "kvserving.dev/former": "x"}
        plane.api.apply(body, manager=FIELD_MANAGER)
    operator.start()
    eventually(lambda: differences(plane, namespace), lambda left: not left, what="children as planned")
    proxy.wait_quiet(1)
    assert pods(plane, namespace) == before


def test_a_status_of_a_newer_release_does_not_stop_an_older_one(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start()
    obj = serving(namespace)
    found = settle(plane, obj)
    assert operator.stop() == 0
    newer = {"type": "Future", "status": "True", "reason": "NotOfThisRelease", "message": "x"}
    unknown = [
        {**c, "reason": "NotOfThisRelease", "message": "x"} if c["type"] in ("TransferVerified", "Ready") else c
        for c in found["status"]["conditions"]
    ]
    stamped = [*unknown, {**newer, "lastTransitionTime": "2030-01-01T00:00:00Z"}]
    status = {**found["status"], "conditions": stamped}
    metadata = {"name": "qwen", "namespace": namespace}
    body = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata, "status": status}
    plane.api.request(
        "PATCH",
        f"{path_of(namespace)}/status",
        body,
        query={"fieldManager": FIELD_MANAGER, "force": "true"},
        content_type="application/apply-patch+yaml",
    )
    operator.start()
    plane.api.wait(
        path_of(namespace),
        lambda o: condition(o, "Ready").get("reason") == "Ready" and not condition(o, "Future"),
        what="a status of this release",
    )
    found = wait_for(plane, obj, "TransferVerified")
    assert condition(found, "TransferVerified")["reason"] == "Verified"
    assert operator.metric("kvserving_operator_reconciles_total", result="error") == 0
