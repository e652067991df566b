"""What GitOps tools see of an object that the operator serves: no difference, and no field that is not theirs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.controlplane import build
from e2e.controlplane.controlplane import ControlPlane
from e2e.operator.objects import condition, path_of
from tests.examples import files

# Those of one machine name a folder in the user's home, which no cluster has.
EXAMPLES = [path for path in files() if "file://~" not in path.read_text()]
ARGO_CD = ("--server-side", "--field-manager=argocd-controller")


class Kubectl:
    """A kubectl of the test's control plane and namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._command = [str(build.kubectl()), "--kubeconfig", str(plane.kubeconfig()), "--namespace", namespace]

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [*self._command, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def apply(self, *arguments: str | Path) -> None:
        done = self.run("apply", *arguments)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def kubectl(plane: ControlPlane, namespace: str) -> Kubectl:
    return Kubectl(plane, namespace)


def seen(plane: ControlPlane, namespace: str, path: Path) -> Any:
    """Return the object once the operator has told what it found."""
    name = yaml.safe_load(path.read_text())["metadata"]["name"]
    return plane.api.wait(
        path_of(namespace, name),
        lambda o: condition(o, "ConfigValid").get("status") == "True",
        what=f"a status of {name}",
        timeout=40,
    )


def test_applying_an_example_again_changes_nothing_that_is_not_status(
    plane: ControlPlane, namespace: str, start: Any, kubectl: Kubectl
) -> None:
    start()
    for path in EXAMPLES:
        kubectl.apply(*ARGO_CD, "-f", path)
    for path in EXAMPLES:
        before = seen(plane, namespace, path)
        kubectl.apply(*ARGO_CD, "-f", path)
        compared = kubectl.run("diff", *ARGO_CD, "-f", path)
        assert (compared.returncode, compared.stdout) == (0, ""), path.name
        after = seen(plane, namespace, path)
        assert after["metadata"]["generation"] == before["metadata"]["generation"] == 1
        assert after["spec"] == yaml.safe_load(path.read_text())["spec"], path.name
        writers = {e["manager"]: list(e["fieldsV1"]) for e in after["metadata"]["managedFields"]}
        assert writers.pop("argocd-controller") == ["f:spec"]
        assert list(writers.values()) == [["f:status"]]


def test_an_apply_by_the_client_sees_no_difference_either(
    plane: ControlPlane, namespace: str, start: Any, kubectl: Kubectl
) -> None:
    start()
    path = EXAMPLES[0]
    kubectl.apply("-f", path)
    seen(plane, namespace, path)
    compared = kubectl.run("diff", "-f", path)
    assert (compared.returncode, compared.stdout) == (0, "")


def test_a_difference_would_be_seen(plane: ControlPlane, namespace: str, start: Any, kubectl: Kubectl) -> None:
    start()
    path = EXAMPLES[0]
    kubectl.apply(*ARGO_CD, "-f", path)
    found = seen(plane, namespace, path)
    replicas = {"spec": {"decode": {"replicas": 7}}}
    plane.api.merge(path_of(namespace, found["metadata"]["name"]), replicas)
    compared = kubectl.run("diff", *ARGO_CD, "--force-conflicts", "-f", path)
    assert compared.returncode == 1
    assert "replicas: 7" in compared.stdout
