"""Children on a real apiserver: made, kept, and left alone where they are not ours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.operator.objects import (
    children,
    condition,
    contains,
    eventually,
    expected,
    path_of,
    planned,
    serving,
)
from e2e.operator.running import ROOT
from e2e.operator.waiting import settle, wait_children, wait_for, wait_for_ready

from kvserving_operator.api.load import load
from kvserving_operator.control import drift
from kvserving_operator.control.children import wanted
from kvserving_operator.control.config import FIELD_MANAGER
from kvserving_operator.control.observe import child_of, serving_of
from kvserving_operator.control.permissions import CHILDREN, resource_of
from kvserving_operator.plan.planning import plan

CASES = sorted((ROOT / "tests/cases/specs/valid").glob("*.yaml"))
RICH: dict[str, Any] = {
    "cache": {"l1": {"size": "8Gi"}, "l2": {"size": "64Gi", "replicas": 2}},
    "prefill": {"replicas": 2, "drainTimeout": "45s"},
    "decode": {"autoscaling": {"min": 2, "max": 6}},
}


def settle_scaled(plane: ControlPlane, namespace: str) -> None:
    """Create a rich object; return once it is ready and tells of HPA, whose first look, without metrics, comes late."""
    settle(plane, serving(namespace, **RICH))
    plane.api.wait(
        path_of(namespace),
        lambda o: condition(o, "ScalingReady").get("status") == "False",
        what="what HPA lacks in the status",
    )


def test_every_planned_child_is_made_and_owned_by_the_object(plane: ControlPlane, namespace: str, start: Any) -> None:
    start()
    obj = serving(namespace, **RICH)
    uid = plane.api.create(obj)["metadata"]["uid"]
    wants = planned(plane, obj, own_namespace=namespace)
    found = wait_children(plane, namespace, expected(wants))
    for (kind, name), child in found.items():
        owners = child["metadata"]["ownerReferences"]
        assert [(o["kind"], o["uid"], o["controller"]) for o in owners] == [("KVServing", uid, True)], (kind, name)
    for manifest in wants.objects:
        live = found.get((str(manifest["kind"]), str(manifest["metadata"]["name"])))
        if live is not None:
            body = {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}
            assert contains(live, body) == []


def test_keys_are_made_once_and_never_written_again(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--resync=0.5")
    settle(plane, serving(namespace))
    path = f"/api/v1/namespaces/{namespace}/secrets/qwen-keys"
    before = plane.api.get(path)
    assert sorted(before["data"]) == ["router-admin", "signing"]
    plane.api.merge(path, {"metadata": {"labels": {"someone": "else"}}})
    eventually(lambda: operator.metric("kvserving_operator_resyncs_total"), lambda n: n >= 3, what="three resyncs")
    after = plane.api.get(path)
    assert after["data"] == before["data"]
    assert after["metadata"]["labels"]["someone"] == "else"


def test_keys_deleted_by_hand_are_made_again_and_told(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start("--counters=0.5")
    settle(plane, serving(namespace))
    path = f"/api/v1/namespaces/{namespace}/secrets/qwen-keys"
    former = plane.api.get(path)["metadata"]["uid"]
    plane.api.delete(path)
    plane.api.wait(path, lambda o: o is not None and o["metadata"]["uid"] != former, what="new keys", timeout=10)
    eventually(
        lambda: [e["reason"] for e in plane.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]],
        lambda found: found.count("SecretRemade") == 1,
        what="an event of it",
    )


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Service", "/api/v1/namespaces/{}/services/qwen"),
        ("ConfigMap", "/api/v1/namespaces/{}/configmaps/qwen-router-launcher"),
        ("RoleBinding", "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings/qwen-router"),
    ],
)
def test_a_child_deleted_by_hand_is_made_again(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, kind: str, path: str
) -> None:
    start()
    settle(plane, serving(namespace))
    where = path.format(namespace)
    former = plane.api.get(where)["metadata"]["uid"]
    plane.api.delete(where)
    started = time.monotonic()
    plane.api.wait(where, lambda o: o is not None and o["metadata"]["uid"] != former, what=f"a new {kind}", timeout=10)
    assert time.monotonic() - started < 5


def test_a_deployment_deleted_by_hand_is_made_again_and_becomes_ready(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace)
    settle(plane, obj)
    name = next(name for kind, name in children(plane, namespace) if kind == "Deployment" and "decode" in name)
    plane.api.delete(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
    wait_for(plane, obj, "DecodeReady", "False")
    wait_for(plane, obj, "Ready")


def test_a_role_given_to_a_scaler_keeps_its_replicas(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace, decode={"replicas": 4})
    settle(plane, obj)
    plane.api.request("PUT", path_of(namespace), {
        **plane.api.get(path_of(namespace)),
        "spec": {**obj["spec"], "decode": {"autoscaling": {"min": 1, "max": 9}}},
    })  # fmt: skip
    plane.api.wait(
        path_of(namespace),
        lambda o: o is not None and o["status"].get("observedGeneration") == 2,
        what="generation 2",
        timeout=10,
    )
    wait_for_ready(plane, namespace, "decode", "4/4")
    path = f"/apis/kvserving.dev/v1alpha1/namespaces/{namespace}/kvservingroles/qwen-decode"
    plane.api.merge(f"{path}/scale", {"spec": {"replicas": 2}}, fieldManager="hpa")
    wait_for_ready(plane, namespace, "decode", "2/2")


def test_a_stable_object_causes_no_write_over_twenty_resyncs(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--resync=0.3")
    settle_scaled(plane, namespace)
    proxy.wait_quiet(2)
    since, done = time.monotonic(), operator.metric("kvserving_operator_resyncs_total")
    reconciled = operator.metric("kvserving_operator_reconciles_total")
    eventually(
        lambda: operator.metric("kvserving_operator_resyncs_total"), lambda n: n >= done + 20, what="20 resyncs",
        timeout=60,
    )  # fmt: skip
    assert operator.metric("kvserving_operator_reconciles_total") >= reconciled + 15
    assert [(r.info.verb, r.info.full_resource, r.info.name) for r in proxy.writes(since=since)] == []


def test_a_restart_causes_no_write(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start()
    settle_scaled(plane, namespace)
    proxy.wait_quiet(2)
    assert operator.stop() == 0
    since = time.monotonic()
    operator.start()
    eventually(lambda: operator.metric("kvserving_operator_reconciles_total"), lambda n: n >= 1, what="a reconcile")
    eventually(lambda: operator.metric("kvserving_operator_verifications_total"), lambda n: n >= 1, what="a probe")
    proxy.wait_quiet(2)
    assert [(r.info.verb, r.info.full_resource, r.info.name) for r in proxy.writes(since=since)] == []


def test_the_users_object_gets_nothing_but_a_status(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace)
    found = settle(plane, obj)
    metadata = found["metadata"]
    assert not {"annotations", "finalizers", "labels", "ownerReferences"} & set(metadata)
    assert found["spec"] == obj["spec"]
    entries = [e for e in metadata["managedFields"] if e["manager"] != "python-urllib3"]
    assert [(e["manager"], e.get("subresource"), list(e["fieldsV1"])) for e in entries] == [
        (FIELD_MANAGER, "status", ["f:status"])
    ]


def test_deletion_leaves_nothing_behind_even_without_the_operator(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start()
    settle(plane, serving(namespace, **RICH))
    operator.kill()
    plane.api.delete(path_of(namespace))
    assert plane.api.find(path_of(namespace)) is None
    wait_children(plane, namespace, set(), timeout=60)


def test_an_object_deleted_while_its_children_are_made_leaves_nothing(
    plane: ControlPlane, namespace: str, start: Any
) -> None:
    start()
    for _ in range(3):
        plane.api.create(serving(namespace))
        eventually(lambda: len(children(plane, namespace)), lambda n: n >= 2, what="some children")
        plane.api.delete(path_of(namespace))
    wait_children(plane, namespace, set(), timeout=60)


def test_children_of_a_former_object_of_the_same_name_are_not_adopted(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace)
    settle(plane, obj)
    former = {child["metadata"]["uid"] for child in children(plane, namespace).values()}
    plane.api.delete(path_of(namespace))
    uid = plane.api.create(obj)["metadata"]["uid"]
    wait_for(plane, obj, "Ready", timeout=90)
    found = children(plane, namespace)
    assert {child["metadata"]["ownerReferences"][0]["uid"] for child in found.values()} == {uid}
    assert not former & {child["metadata"]["uid"] for child in found.values()}


def test_a_child_that_the_plan_no_longer_names_is_pruned_and_foreign_ones_stay(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    plane.api.create({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "notes", "namespace": namespace, "labels": {"kvserving.dev/name": "qwen"}},
    })  # fmt: skip
    start()
    obj = serving(namespace, **RICH)
    settle(plane, obj)
    less = {**obj["spec"], "cache": None, "networkPolicy": {"enabled": False}}
    plane.api.merge(path_of(namespace), {"spec": less})
    wants = planned(plane, plane.api.get(path_of(namespace)), own_namespace=namespace)
    names = {name for name in expected(wants) if name[0] != "Secret"} | {("ConfigMap", "notes")}
    eventually(
        lambda: {name for name in children(plane, namespace) if name[0] != "Secret"},
        lambda found: found == names,
        what=f"children {names}",
        timeout=60,
    )


@pytest.mark.parametrize("case", CASES, ids=[case.stem for case in CASES])
def test_what_is_applied_is_recognised_as_applied(plane: ControlPlane, namespace: str, case: Path) -> None:
    check_recognised(plane, namespace, yaml.safe_load(case.read_text()))


def test_what_is_applied_is_recognised_as_applied_in_a_rich_object(plane: ControlPlane, namespace: str) -> None:
    check_recognised(plane, namespace, serving(namespace, **RICH))


def check_recognised(plane: ControlPlane, namespace: str, document: Json) -> None:
    """Apply all that is planned for ``document`` and compare with what the apiserver keeps of it."""
    document["metadata"]["namespace"] = namespace
    owner = plane.api.create(serving(namespace, "owner"))
    stored = serving_of({**owner, "metadata": {**owner["metadata"], "name": document["metadata"]["name"]}})
    optional = {resource.kind for resource in CHILDREN if resource.optional}
    for manifest in plan(load(document, strict=False)).objects:
        if manifest["kind"] in optional:
            continue
        child = wanted(stored, manifest, None)
        resource = resource_of(child.api_version, child.kind)
        try:
            answer = plane.api.apply(child.body, manager=FIELD_MANAGER, force=False, dryRun="All")
        except ApiError as error:
            pytest.fail(f"{child.kind} {child.name} is refused: {error}")
        live = child_of(answer, resource.api_version, resource.kind)
        assert live.digest == child.digest
        assert drift.matches(child.body, live.fields), f"{child.kind} {child.name}\n{child.body}\n{live.fields}"
