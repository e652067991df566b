"""Pods as processes: stand-ins for engines, whose probes, restarts, keys, tokens and ends are real."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.controlplane.api import ApiError
from e2e.controlplane.cluster import existing
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.process_runtime import ProcessRuntime
from e2e.controlplane.tests.objects import Json, condition, is_ready
from e2e.controlplane.tests.waiting import until

from kvserving_operator.local import procfs
from kvserving_operator.local.restarting import RestartPolicy

ROOT = Path(__file__).parents[3]
STAND_IN = ROOT / "tests" / "local" / "stand_in.py"
KEYS = "/etc/kvserving/keys"


@dataclass(frozen=True)
class Node:
    """A kubelet with processes, and where its pods are."""

    plane: ControlPlane
    namespace: str
    runtime: ProcessRuntime

    def path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}"

    def create(self, name: str, *flags: str, container: str = "engine", **more: Any) -> str:
        self.plane.api.create(stand_in(self.namespace, name, *flags, container=container, **more))
        return self.path(name)


def stand_in(namespace: str, name: str, *flags: str, container: str = "engine", **more: Any) -> Json:
    """Return a pod; ``more`` goes into its container, ``spec`` into the pod."""
    spec = more.pop("spec", {})
    main = {
        "name": container,
        "image": "stand-in:1",
        "command": ["python3", str(STAND_IN)],
        "args": ["--host=$(KVSERVING_BIND_ADDRESS)", "--port=18000", *flags],
        "env": [
            {"name": "KVSERVING_ROLE", "value": "decode"},
            {"name": "KVSERVING_BIND_ADDRESS", "value": "0.0.0.0"},
            {"name": "TEST_NAMESPACE", "value": namespace},
        ],
        "ports": [{"name": "http", "containerPort": 18000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1},
        **more,
    }
    labels = {"kvserving.dev/role": "router" if container == "router" else "decode"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [main], "automountServiceAccountToken": False, **spec},
    }


@pytest.fixture
def node(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Node]:
    policy = RestartPolicy(first=0.1, attempts=None)
    runtime = ProcessRuntime(control_plane, folder=tmp_path / "node", engine_python=sys.executable, policy=policy)
    with FakeKubelet(
        control_plane, namespace=namespace, node=f"node-{namespace}", network=runtime.network, runtime=runtime
    ):
        yield Node(control_plane, namespace, runtime)


def secret(namespace: str, **values: str) -> Json:
    metadata = {"name": "keys", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}


def processes(namespace: str) -> set[int]:
    """Processes of the pods of a namespace, by a variable that they inherit."""
    found = set()
    mark = f"TEST_NAMESPACE={namespace}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in environ.split(b"\0") and procfs.start_time(int(entry.name)) is not None:
                found.add(int(entry.name))
    return found


def container_of(found: Json | None) -> Json:
    return dict(((found or {}).get("status") or {}).get("containerStatuses", [{}])[0])


def test_a_pod_is_ready_by_its_probe_and_a_killed_process_is_restarted_and_counted(node: Node, tmp_path: Path) -> None:
    unhealthy = tmp_path / "unhealthy"
    unhealthy.touch()
    path = node.create("a", f"--unhealthy-when={unhealthy}")
    found = node.plane.api.wait(path, lambda p: "running" in container_of(p).get("state", {}), what="it runs")
    assert not is_ready(found)
    unhealthy.unlink()
    node.plane.api.wait(path, is_ready, what="ready")
    first = node.runtime.pid(node.namespace, "a")
    os.kill(first, signal.SIGKILL)
    found = node.plane.api.wait(
        path, lambda p: is_ready(p) and container_of(p)["restartCount"] == 1, what="ready again, restarted once"
    )
    assert container_of(found)["lastState"]["terminated"]["exitCode"] == 137
    assert node.runtime.pid(node.namespace, "a") != first


def test_a_process_that_ends_at_once_is_tried_for_ever_and_said_to_crash(node: Node) -> None:
    path = node.create("a", "--exit-after=0", "--exit-code=3")
    found = node.plane.api.wait(
        path,
        lambda p: container_of(p).get("restartCount", 0) > 3 and "waiting" in container_of(p)["state"],
        what="restarts beyond what the executor would try",
    )
    assert container_of(found)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert container_of(found)["lastState"]["terminated"]["exitCode"] == 3


def test_a_pod_waits_for_its_secret_and_finds_it_readable_by_the_owner_alone(node: Node, tmp_path: Path) -> None:
    dump = tmp_path / "dump.json"
    path = node.create(
        "a",
        f"--dump={dump}",
        f"--key-file={KEYS}/signing",
        env=[
            {"name": "KVSERVING_BIND_ADDRESS", "value": "0.0.0.0"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
            {"name": "NOTHING", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "absent", "optional": True}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
        volumeMounts=[{"name": "keys", "mountPath": KEYS, "readOnly": True}],
        spec={"volumes": [{"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o444}}]},
    )
    found = node.plane.api.wait(path, lambda p: "waiting" in container_of(p).get("state", {}), what="it waits")
    found = node.plane.api.wait(
        path,
        lambda p: container_of(p)["state"].get("waiting", {}).get("reason") == "CreateContainerConfigError",
        what="it says for what",
    )
    assert "keys" in container_of(found)["state"]["waiting"]["message"]
    node.plane.api.create(secret(node.namespace, token="for the environment", signing="for the file"))
    found = node.plane.api.wait(path, is_ready, what="ready") or {}
    told = json.loads(dump.read_text())
    file = Path(next(a for a in told["argv"] if a.startswith("--key-file=")).partition("=")[2])
    assert file == node.runtime.volume(node.namespace, "a", "keys") / "signing"
    assert file.read_text() == "for the file"
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o400, 0o700)
    assert told["env"]["TOKEN"] == "for the environment"
    assert "NOTHING" not in told["env"]
    assert told["env"]["POD_IP"] == found["status"]["podIP"]
    assert told["env"]["POD_UID"] == found["metadata"]["uid"]
    assert "KUBECONFIG" not in told["env"], "it has no service account"


def test_a_router_may_do_what_its_service_account_may_and_no_more(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/of/the/administrator")
    user = node.plane.service_account(
        node.namespace, "router", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    )
    until(lambda: node.plane.allowed(user.name, "list", "pods", namespace=node.namespace))
    dump = tmp_path / "dump.json"
    spec = {"serviceAccountName": "router", "automountServiceAccountToken": True}
    path = node.create("a", f"--dump={dump}", container="router", spec=spec)
    node.plane.api.wait(path, is_ready, what="ready")
    kubeconfig = Path(json.loads(dump.read_text())["env"]["KUBECONFIG"])
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
    api = existing(str(kubeconfig), tmp_path).api
    assert [pod["metadata"]["name"] for pod in api.items(f"/api/v1/namespaces/{node.namespace}/pods")] == ["a"]
    with pytest.raises(ApiError) as refused:
        api.items(f"/api/v1/namespaces/{node.namespace}/secrets")
    assert refused.value.status == 403
    assert f"system:serviceaccount:{node.namespace}:router" in str(refused.value)


def test_a_deleted_pod_gets_its_hook_then_the_signal_and_leaves_nothing(node: Node, tmp_path: Path) -> None:
    order = tmp_path / "order"
    said = f"import pathlib; pathlib.Path({str(order)!r}).write_text('hook\\n')"
    path = node.create(
        "a",
        f"--order={order}",
        "--child=same-session",
        lifecycle={"preStop": {"exec": {"command": ["python3", "-c", said]}}},
    )
    node.plane.api.wait(path, is_ready, what="ready")
    pid = node.runtime.pid(node.namespace, "a")
    assert len(procfs.session_processes(pid)) == 2
    node.plane.api.delete(path)
    node.plane.api.wait(path, lambda p: p is None, what="gone")
    assert order.read_text() == "hook\ndecode\n"
    assert procfs.session_processes(pid) == []


def test_a_pod_that_heeds_no_signal_is_killed_when_its_grace_is_over(node: Node) -> None:
    path = node.create("a", "--ignore-sigterm", spec={"terminationGracePeriodSeconds": 1})
    node.plane.api.wait(path, is_ready, what="ready")
    pid = node.runtime.pid(node.namespace, "a")
    node.plane.api.delete(path)
    node.plane.api.wait(path, lambda p: p is None, what="gone", timeout=15)
    assert procfs.session_processes(pid) == []


def test_nothing_of_a_kubelet_that_ends_or_is_killed_is_left(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Also what left its session, and what heeds no signal."""
    script = f"""
import sys
from pathlib import Path
from e2e.controlplane.cluster import existing
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.process_runtime import ProcessRuntime
folder = Path(sys.argv[1])
folder.mkdir()
cluster = existing(sys.argv[2], folder)
runtime = ProcessRuntime(cluster, folder=folder, engine_python=sys.executable)
with FakeKubelet(cluster, namespace={namespace!r}, node="node-{namespace}", network=runtime.network, runtime=runtime):
    sys.stdin.read()
"""
    kubeconfig = str(control_plane.kubeconfig())
    path = f"/api/v1/namespaces/{namespace}/pods"
    for number, end in enumerate(("killed", "ended")):
        name = f"pod-{number}"
        kubelet = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / end), kubeconfig],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "operator" / "src")))},
            stdin=subprocess.PIPE,
        )
        try:
            control_plane.api.create(stand_in(namespace, name, "--child=own-session", "--ignore-sigterm"))
            control_plane.api.wait(f"{path}/{name}", is_ready, what="ready")
            assert processes(namespace), "the pod's processes are not seen"
            if end == "killed":
                kubelet.kill()
            else:
                assert kubelet.stdin is not None
                kubelet.stdin.close()
            kubelet.wait(30)
            until(lambda: not processes(namespace), timeout=25)
        finally:
            kubelet.kill()
            kubelet.wait()
        control_plane.api.delete(f"{path}/{name}", gracePeriodSeconds=0)


def test_a_pod_that_asks_for_a_device_is_told_that_there_is_none(node: Node) -> None:
    path = node.create("a", resources={"limits": {"nvidia.com/gpu": "1"}})
    found = node.plane.api.wait(path, lambda p: bool(condition(p, "PodScheduled").get("message")), what="refused")
    assert "nvidia.com/gpu" in condition(found, "PodScheduled")["message"]
