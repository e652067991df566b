"""A control plane that goes away, forgets, or was there before this release; each test has one of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.fixtures import CRDS
from e2e.operator.objects import children, eventually, path_of, serving
from e2e.operator.waiting import settle, uids, wait_for_ready, wait_planned


@pytest.fixture
def plane(own_control_plane: ControlPlane) -> ControlPlane:
    """A control plane whose programs may be stopped."""
    return own_control_plane


def test_restarts_of_etcd_and_apiserver_and_a_forgotten_history_double_nothing(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start()
    settle(plane, serving(namespace))
    before = uids(plane, namespace)
    plane.etcd.restart(downtime=2)
    plane.apiserver.wait_ready()
    plane.api.merge(path_of(namespace), {"spec": {"decode": {"replicas": 3}}})
    wait_planned(plane, namespace, timeout=90)
    # Watches go on from a version that is no longer known: 410, and everything is listed anew.
    plane.api.merge(path_of(namespace), {"spec": {"decode": {"replicas": 1}}})
    plane.compact()
    plane.apiserver.restart()
    wait_planned(plane, namespace, timeout=90)
    wait_for_ready(plane, namespace, "decode", "1/1")
    assert uids(plane, namespace) == before
    proxy.wait_quiet(1)
    assert operator.process is not None
    assert operator.process.poll() is None


def test_what_an_older_schema_stored_is_reconciled_by_this_one(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    crd = next(crd for crd in map(read, CRDS) if crd["spec"]["names"]["kind"] == "KVServing")
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    former = {"type": "string"}
    properties["spec"]["properties"]["formerly"] = former
    properties["spec"]["properties"]["prefill"]["properties"]["formerly"] = former
    plane.api.apply(crd)
    obj = serving(namespace, formerly="x", prefill={"replicas": 1, "formerly": "y"})
    # The apiserver takes the new schema a moment after it was stored.
    eventually(lambda: created(plane, obj), bool, what="an object with the former fields")
    plane.apply_crds(CRDS)
    eventually(
        lambda: plane.api.get(path_of(namespace))["spec"], lambda spec: "formerly" not in spec, what="this schema"
    )
    start()
    wait_planned(plane, namespace)
    assert len(children(plane, namespace)) > 5


def read(path: Path) -> Json:
    document: Json = yaml.safe_load(path.read_text())
    return document


def created(plane: ControlPlane, obj: Json) -> bool:
    """Whether the object could be created with its former fields; one without them is deleted again."""
    try:
        made = plane.api.create(obj)
    except ApiError as error:
        # So are requests answered while the server changes over to another schema.
        if error.status != 503:
            raise
        return False
    if "formerly" in made["spec"]:
        return True
    plane.api.delete(path_of(obj["metadata"]["namespace"]))
    return False
