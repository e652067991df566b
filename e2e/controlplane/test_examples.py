"""The examples on a real apiserver: taken as they are, with children that it takes and pods that it admits.

Their namespace enforces the restricted Pod Security standard, in the form of this Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.controlplane import ControlPlane
from tests.api.objects import load_file
from tests.examples import files
from tests.kubernetes_versions import FOREIGN

from kvserving_operator.plan.planning import plan

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
# Those of one machine name a folder in the user's home, which no cluster has.
IN_A_CLUSTER = [path for path in files() if "file://~" not in path.read_text()]


def name(path: Path) -> str:
    return path.stem


@pytest.fixture(scope="module")
def restricted(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace with the label, in a cluster that has the runtime class that an example names."""
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    control_plane.api.apply({**runtime, "handler": "nvidia"})
    made = control_plane.namespace("restricted", labels=RESTRICTED)
    yield made
    control_plane.api.delete(f"/api/v1/namespaces/{made}")


def children(path: Path, namespace: str) -> list[Any]:
    serving = load_file(path)
    metadata = serving.metadata.model_copy(update={"namespace": namespace})
    made = plan(serving.model_copy(update={"metadata": metadata})).objects
    return [obj for obj in made if obj["kind"] not in FOREIGN]


def pod_of(workload: Json) -> Json:
    """The pod of a workload, with an account that exists."""
    template = workload["spec"]["template"]
    metadata = {"name": workload["metadata"]["name"], "namespace": workload["metadata"]["namespace"]}
    spec = {**template["spec"], "serviceAccountName": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], **metadata}, "spec": spec}


def pods(path: Path, namespace: str) -> list[Json]:
    return [pod_of(obj) for obj in children(path, namespace) if obj["kind"] in ("Deployment", "StatefulSet")]


def locks_memory(pod: Json) -> bool:
    contexts = [container.get("securityContext", {}) for container in pod["spec"]["containers"]]
    return any("IPC_LOCK" in context.get("capabilities", {}).get("add", ()) for context in contexts)


@pytest.mark.parametrize("path", IN_A_CLUSTER, ids=name)
def test_an_example_is_taken_as_it_is(control_plane: ControlPlane, restricted: str, path: Path) -> None:
    obj = yaml.safe_load(path.read_text())
    obj["metadata"]["namespace"] = restricted
    control_plane.api.create(obj, fieldValidation="Strict", dryRun="All")


@pytest.mark.parametrize("path", files(), ids=name)
def test_its_children_are_taken_as_they_are(control_plane: ControlPlane, restricted: str, path: Path) -> None:
    for child in children(path, restricted):
        control_plane.api.apply(child, fieldValidation="Strict", dryRun="All")


@pytest.mark.parametrize("path", files(), ids=name)
def test_its_pods_are_admitted_where_the_restricted_standard_is_enforced(
    control_plane: ControlPlane, restricted: str, path: Path
) -> None:
    made = pods(path, restricted)
    assert made
    for pod in made:
        if locks_memory(pod):
            # RDMA alone needs what the standard forbids.
            assert load_file(path).spec.transfer.rdma.mode == "required"
            with pytest.raises(ApiError, match=r"restricted.*IPC_LOCK"):
                control_plane.api.create(pod, fieldValidation="Strict", dryRun="All")
        else:
            control_plane.api.create(pod, fieldValidation="Strict", dryRun="All")


def test_the_standard_is_enforced_there(control_plane: ControlPlane, restricted: str) -> None:
    (path,) = (path for path in files() if path.stem == "gpu-host")
    for pod in pods(path, restricted):
        pod["spec"]["securityContext"] = {}
        with pytest.raises(ApiError, match="restricted"):
            control_plane.api.create(pod, dryRun="All")
