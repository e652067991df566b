"""Real engines under the real operator: Ready means that KV moved, and a decode that recomputes is told on.

A control plane, the operator process with its own probes, and a kubelet that runs the pods as processes: vLLM for CPU
and the router, which finds its engines through the apiserver with the rights of its service account.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import urllib3
import yaml
from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.process_runtime import ProcessRuntime
from e2e.local.asking import Texts
from e2e.local.real_model import NoEngine, engine_python, tiny_model
from e2e.operator.objects import condition, eventually, path_of
from e2e.operator.running import ROOT, Operator, operator_user

from kvserving_operator.local import procfs

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

UP_SECONDS = 400
EXAMPLE = ROOT / "examples" / "cluster-without-gpu.yaml"
NAME = "tiny"
PROMPT_TOKENS = 700
_HTTP = urllib3.PoolManager(retries=False)


@dataclass
class Service:
    """One object whose engines run."""

    plane: ControlPlane
    namespace: str
    runtime: ProcessRuntime
    operator: Operator
    texts: Texts
    asked: int = 0

    def wait(self, kind: str, status: str, reason: str | None = None, *, timeout: float) -> Json:
        """Return the object as soon as a condition has a status, and a reason where one is named."""

        def holds(obj: Json | None) -> bool:
            found = condition(obj, kind)
            return found.get("status") == status and reason in (None, found.get("reason"))

        what = f"{kind}={status} {reason or ''}"
        return self.plane.api.wait(path_of(self.namespace, NAME), holds, what=what, timeout=timeout) or {}

    def pod(self, role: str) -> Json:
        """Return the pod of a role."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        [found] = self.plane.api.items(path, labelSelector=f"kvserving.dev/role={role}")
        return found

    def ask(self) -> int:
        """Send a prompt that no engine has seen through the router; return the status."""
        self.asked += 1
        prompt = self.texts.of(PROMPT_TOKENS, seed=self.asked)
        answer = _HTTP.request(
            "POST",
            f"http://{self.pod('router')['status']['podIP']}:8000/v1/completions",
            json={"model": "tiny", "prompt": prompt, "max_tokens": 4},
            timeout=60,
        )
        return answer.status

    @contextmanager
    def traffic(self) -> Iterator[list[int]]:
        """Ask one question after the other; the list fills with statuses, 0 for a question without an answer."""
        statuses: list[int] = []
        over = threading.Event()

        def ask() -> None:
            while not over.wait(0.5):
                try:
                    statuses.append(self.ask())
                except urllib3.exceptions.HTTPError:
                    statuses.append(0)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield statuses
        finally:
            over.set()
            thread.join()


@pytest.fixture(scope="module")
def service(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that was asked for, with everything that makes it run."""
    try:
        python = engine_python()
    except NoEngine as reason:
        pytest.skip(str(reason))
    model = tiny_model(python)
    folder = tmp_path_factory.mktemp("real")
    namespace = control_plane.namespace("kvs")
    # The example's claim is called as the folder that holds the models.
    runtime = ProcessRuntime(control_plane, folder=folder, engine_python=python, claims=model.parents[1])
    operator = Operator(
        kubeconfig=control_plane.kubeconfig(operator_user(control_plane, namespace)),
        log=folder / "operator.log",
        own_namespace=namespace,
        arguments=(f"--namespace={namespace}",),
        env={"KUBECONFIG": ""},
    )
    with FakeKubelet(control_plane, namespace=namespace, network=runtime.network, runtime=runtime):
        try:
            operator.start()
            control_plane.api.create(example(namespace))
            yield Service(control_plane, namespace, runtime, operator, Texts(model))
        finally:
            operator.end()
            # Shown with a failed test alone, as all that tests write.
            sys.stderr.write(f"--- operator\n{operator.tail(60)}\n{runtime.tails()}\n")
    control_plane.api.delete(f"/api/v1/namespaces/{namespace}")


def example(namespace: str) -> Json:
    """Return the object of the example: one prefill, one decode, one router."""
    found: Json = yaml.safe_load(EXAMPLE.read_text())
    found["metadata"]["namespace"] = namespace
    # Stopping a prefill waits for its leases; a probe waits in the queues of a busy machine for less than one.
    found["spec"]["transfer"] = {"lease": "20s"}
    return found


def test_ready_is_reached_with_real_engines_and_a_question_is_answered(service: Service) -> None:
    obj = service.wait("Ready", "True", timeout=UP_SECONDS)
    assert condition(obj, "TransferVerified")["status"] == "True"
    assert condition(obj, "TransferVerified")["reason"] == "Verified"
    assert "through the router" in condition(obj, "TransferVerified")["message"]
    assert service.ask() == 200


def test_a_decode_that_recomputes_is_reported_within_a_minute_and_ready_returns_with_its_key(service: Service) -> None:
    """Answers stay right and fast enough to please a client: only what decode counted tells."""
    service.wait("Ready", "True", timeout=UP_SECONDS)
    key = service.runtime.volume(service.namespace, service.pod("decode")["metadata"]["name"], "keys") / "signing"
    own = key.read_text()
    with service.traffic() as statuses:
        replace(key, "f" * 64)
        obj = service.wait("TransferVerified", "False", "RecomputingKV", timeout=60)
        assert condition(obj, "Ready")["status"] == "False"
        assert condition(obj, "Degraded")["status"] == "True"
        assert condition(obj, "Available")["status"] == "True"
        replace(key, own)
        obj = service.wait("Ready", "True", timeout=120)
        assert condition(obj, "TransferVerified")["reason"] == "Verified"
    assert len(statuses) > 10
    assert set(statuses) == {200}


def test_a_killed_decode_is_seen_is_restarted_proved_again_and_answers(service: Service) -> None:
    service.wait("Ready", "True", timeout=UP_SECONDS)
    proofs = service.operator.metric("kvserving_operator_verifications_total", reason="Verified")
    os.kill(service.runtime.pid(service.namespace, service.pod("decode")["metadata"]["name"]), signal.SIGKILL)
    service.wait("DecodeReady", "False", timeout=20)
    service.wait("Ready", "True", timeout=UP_SECONDS)
    assert service.pod("decode")["status"]["containerStatuses"][0]["restartCount"] == 1
    eventually(
        lambda: service.operator.metric("kvserving_operator_verifications_total", reason="Verified"),
        lambda count: count > proofs,
        what="the new process is proved to receive KV, long before the interval is over",
        timeout=60,
    )
    assert service.ask() == 200


def test_deletion_ends_every_process(service: Service) -> None:
    pids = [
        service.runtime.pid(service.namespace, service.pod(role)["metadata"]["name"])
        for role in ("prefill", "decode", "router")
    ]
    paths = [
        f"/api/v1/namespaces/{service.namespace}/pods/{service.pod(role)['metadata']['name']}"
        for role in ("router", "decode", "prefill")
    ]
    service.plane.api.delete(path_of(service.namespace, NAME))
    for path in paths:
        service.plane.api.wait(path, lambda found: found is None, what=f"{path} is gone", timeout=60)
    assert [pid for pid in pids if procfs.session_processes(pid)] == []


def replace(file: Path, text: str) -> None:
    """Replace a file as a kubelet does: whole, at once."""
    fresh = file.with_suffix(".fresh")
    fresh.touch(mode=0o600)
    fresh.write_text(text)
    fresh.replace(file)
