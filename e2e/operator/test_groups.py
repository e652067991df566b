"""Engines on several nodes, with and without the kind that makes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.controlplane import build, foreign_crds
from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.operator.objects import condition, eventually, path_of, serving
from e2e.operator.waiting import wait_for

SPAN = {"replicas": 1, "nodes": 2, "parallelism": {"tensor": 2}}


@pytest.fixture
def crd(plane: ControlPlane) -> Iterator[Path]:
    """The file with LeaderWorkerSet's own definition, which is not there before the test installs it, nor after."""
    try:
        file = foreign_crds.crd("LeaderWorkerSet")
    except build.ProgramsMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    name = yaml.safe_load(file.read_text())["metadata"]["name"]
    yield file
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    if plane.api.find(path) is not None:
        plane.api.delete(path)
    # An operator that starts while the apiserver still offers the kind would watch it, and end when it goes.
    eventually(lambda: plane.api.find("/apis/leaderworkerset.x-k8s.io/v1"), lambda found: found is None, what="its end")


def leaders(groups: Json) -> Json:
    """What the kind's own controller, which is not here, makes of ``groups`` for the pods that lead them."""
    template = groups["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    name = groups["metadata"]["name"]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": groups["metadata"]["namespace"]},
        "spec": {
            "replicas": groups["spec"]["replicas"],
            "serviceName": name,
            "selector": {"matchLabels": template["metadata"]["labels"]},
            "template": template,
        },
    }


def test_groups_are_made_once_their_kind_is_there_and_keep_their_number(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, crd: Path
) -> None:
    start("--resync=2")
    obj = serving(namespace, decode=SPAN)
    plane.api.create(obj)
    wait_for(plane, obj, "PrefillReady")
    wait_for(plane, obj, "DecodeReady", "False")
    eventually(
        lambda: condition(plane.api.get(path_of(namespace)), "DecodeReady"),
        lambda found: found["reason"] == "KindMissing" and "set spec.decode.nodes to 1" in found["message"],
        what="a condition that says what is missing",
        timeout=60,
    )
    assert condition(plane.api.get(path_of(namespace)), "Stalled")["status"] == "True"
    plane.apply_crds([crd])
    collection = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets"

    def made() -> list[Any]:
        try:
            return plane.api.items(collection)
        except ApiError as error:
            # A new kind is not served at once.
            if error.status not in (404, 429):
                raise
            return []

    (groups,) = eventually(made, lambda found: len(found) == 1, what="the groups", timeout=60)
    assert groups["spec"]["leaderWorkerTemplate"]["size"] == 2
    wait_for(plane, obj, "Stalled", "False", timeout=60)
    path = f"{collection}/{groups['metadata']['name']}"
    plane.api.create(leaders(groups))
    counts = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}
    plane.api.merge(f"{path}/status", {"status": {**counts, "observedGeneration": groups["metadata"]["generation"]}})
    wait_for(plane, obj, "DecodeReady", timeout=60)
    plane.api.merge(path, {"spec": {"replicas": 5}}, fieldManager="kubectl")
    plane.api.wait(path, lambda o: o is not None and o["spec"]["replicas"] == 1, what="1 group again", timeout=30)
