"""The plugin of kubectl as a process against a real apiserver: doctor, status and verify, also by way of its proxy."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from e2e.controlplane.api import ApiError, Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.operator.objects import eventually, path_of, planned, serving
from e2e.operator.running import operator_user
from e2e.operator.waiting import settle
from tests.serving_thread import served
from tests.verify.standin import Engine

from kvserving_operator.control.permissions import rules
from kvserving_operator.doctor.checks.namespace import ENFORCED

_SECONDS = 120


@dataclass
class Answer:
    status: int
    out: str
    err: str

    @property
    def findings(self) -> dict[str, Json]:
        return {finding["check"]: finding for finding in json.loads(self.out)["findings"]}


def plugin(kubeconfig: Path, *arguments: str) -> Answer:
    """Run the program that kubectl finds in PATH."""
    program = shutil.which("kubectl-kvserving", path=str(Path(sys.executable).parent))
    assert program is not None, "make install puts it beside the interpreter"
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    done = subprocess.run([program, *arguments], env=env, capture_output=True, text=True, timeout=_SECONDS)
    return Answer(done.returncode, done.stdout, done.stderr)


@dataclass
class Pair:
    """One server that is prefill or decode, as the request asks: the apiserver passes on no pod's name."""

    address: str
    port: int
    prefill: Engine
    decode: Engine
    version: str = "0.33.0"
    counters: str = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/v1/models", self.decode.models)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/version", self.told)
        return app

    async def complete(self, request: web.Request) -> web.Response:
        params = (await request.json()).get("kv_transfer_params") or {}
        return await (self.prefill if params.get("do_remote_decode") else self.decode).complete(request)

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f"{(await self.decode.metrics(request)).text}{self.counters}")

    async def told(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.version})


def outward() -> str:
    """An address of this machine that is no loopback: the apiserver passes nothing on to those."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address beside the loopback ones")
        return str(probe.getsockname()[0])


@pytest.fixture
def engines() -> Iterator[Pair]:
    """A stand-in of both roles, served at an address of this machine."""
    pair = Pair(outward(), 0, Engine("prefill", "prefill"), Engine("decode", "decode"))
    with served(pair.app(), pair.address) as port:
        pair.port = port
        yield pair


def object_of(namespace: str, port: int) -> Json:
    return serving(namespace, engine={"version": "0.33.0", "args": [f"--port={port}"]}, router={"type": "none"},
                   decode={"replicas": 1}, rollout={"maxSurge": 0, "maxUnavailable": 1})  # fmt: skip


def pods(plane: ControlPlane, namespace: str) -> list[Json]:
    found = plane.api.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector="kvserving.dev/name")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def move(plane: ControlPlane, namespace: str, address: str) -> None:
    """Let the pods have the address at which the stand-in serves."""
    for pod in pods(plane, namespace):
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
        plane.api.merge(path, {"status": {"podIP": address, "podIPs": [{"ip": address}]}})


def test_an_object_as_the_operator_made_it_has_no_error_and_each_change_is_found(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, engines: Pair
) -> None:
    operator = start()
    settle(plane, object_of(namespace, engines.port))
    move(plane, namespace, engines.address)
    kubeconfig = plane.kubeconfig()
    answer = plugin(kubeconfig, "doctor", "qwen", "-n", namespace, "-o", "json")
    said = json.loads(answer.out)
    assert [f for f in said["findings"] if f["severity"] == "error"] == [], answer.out
    assert answer.status == 0
    # What the apiserver and its controllers add to workloads and pods is nobody's tampering.
    unwanted = {"workload-changed", "pod-env-added", "sidecar", "not-looked-at", "crd-old", "command-old"}
    assert not unwanted & set(answer.findings), answer.out
    assert {setting["role"] for setting in said["settings"]} == {"prefill", "decode"}

    assert operator.stop() == 0
    before = {pod["metadata"]["name"] for pod in pods(plane, namespace) if "-decode-" in pod["metadata"]["name"]}
    deployment = next(
        item
        for item in plane.api.items(f"/apis/apps/v1/namespaces/{namespace}/deployments")
        if "-decode-" in item["metadata"]["name"]
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["env"] = [e if e["name"] != "UCX_TLS" else {"name": "UCX_TLS", "value": "tcp"} for e in container["env"]]
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment['metadata']['name']}"
    plane.api.merge(path, {"spec": {"template": {"spec": {"containers": [container]}}}})
    plane.api.merge(f"/api/v1/namespaces/{namespace}/secrets/qwen-keys", {"data": {"signing": None}})
    for policy in plane.api.items(f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"):
        plane.api.delete(
            f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/{policy['metadata']['name']}"
        )
    eventually(
        lambda: {p["metadata"]["name"]: p["status"].get("podIP") for p in pods(plane, namespace)},
        lambda found: len(found) == 2 and all(found.values()) and not before & set(found),
        what="the changed decode runs in the place of the one before",
    )  # fmt: skip
    move(plane, namespace, engines.address)
    engines.version = "0.30.0"
    engines.counters = (
        "# TYPE vllm:nixl_num_notifications_after_expiry counter\nvllm:nixl_num_notifications_after_expiry_total 3\n"
    )
    answer = plugin(kubeconfig, "doctor", "qwen", "-n", namespace, "-o", "json")
    assert answer.status == 1
    found = answer.findings
    assert {
        "workload-changed",
        "secret-key-missing",
        "network-policy-missing",
        "engine-version",
        "read-after-lease",
    } <= (set(found))
    assert "UCX_TLS differs" in found["workload-changed"]["what"]
    assert found["secret-key-missing"]["where"] == "Secret qwen-keys"
    assert "ERROR    Secret qwen-keys" in plugin(kubeconfig, "doctor", "qwen", "-n", namespace).out


def test_verify_goes_by_way_of_the_proxy_and_status_shows_what_the_operator_reports(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, engines: Pair
) -> None:
    start()
    obj = settle(plane, object_of(namespace, engines.port))
    move(plane, namespace, engines.address)
    secret = plane.api.get(f"/api/v1/namespaces/{namespace}/secrets/qwen-keys")
    for engine in (engines.prefill, engines.decode):
        engine.key = base64.b64decode(secret["data"]["signing"]).strip()
        engine.revision = obj["status"]["revision"]
    kubeconfig = plane.kubeconfig()
    answer = plugin(kubeconfig, "verify", "qwen", "-n", namespace)
    assert (answer.status, answer.out.splitlines()[-1]) == (
        0, "verified: KV moved from prefill to decode in 1 pair of engines",
    ), answer  # fmt: skip
    assert engines.prefill.key.decode() not in answer.out + answer.err
    engines.decode.faults = frozenset({"recomputes"})
    answer = plugin(kubeconfig, "verify", "qwen", "-n", namespace)
    assert answer.status == 1
    assert "not verified (RecomputingKV)" in answer.out
    assert "the operator, which needs no proxy, says: Verified" in answer.err
    shown = plugin(kubeconfig, "status", "qwen", "-n", namespace)
    assert shown.status == 0
    assert "TransferVerified" in shown.out
    assert all(pod["metadata"]["name"] in shown.out for pod in pods(plane, namespace))


def test_rights_are_those_of_the_caller_and_of_the_operators_account(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    settle(plane, serving(namespace))
    reader = plane.service_account(
        namespace,
        "reader",
        [{"apiGroups": ["kvserving.dev"], "resources": ["kvservings"], "verbs": ["get", "list"]}],
    )
    eventually(
        lambda: plane.allowed(reader.name, "get", "kvservings", group="kvserving.dev", namespace=namespace),
        bool, what="the reader's rights",
    )  # fmt: skip
    answer = plugin(plane.kubeconfig(reader), "doctor", "qwen", "-n", namespace, "--only", "findings", "-o", "json")
    told = [finding["where"] for finding in json.loads(answer.out)["findings"] if finding["check"] == "not-looked-at"]
    assert {"pods", "events", "secrets", "nodes", "deployments.apps"} <= set(told)

    user = operator_user(plane, namespace)
    account = user.name.rpartition(":")[2]
    marks = {"app.kubernetes.io/name": "kvserving-operator"}
    container = {"name": "operator", "image": "operator", "args": [f"--namespace={namespace}"]}
    template = {"metadata": {"labels": marks}, "spec": {"serviceAccountName": account, "containers": [container]}}
    plane.api.create(
        {"apiVersion": "apps/v1", "kind": "Deployment",
         "metadata": {"name": "operator", "namespace": namespace, "labels": marks},
         "spec": {"replicas": 0, "selector": {"matchLabels": marks}, "template": template}}
    )  # fmt: skip
    admin = plane.kubeconfig()
    answer = plugin(admin, "doctor", "-n", namespace, "-o", "json")
    assert "operator-permissions" not in answer.findings, answer.out
    assert "operator-down" in answer.findings
    assert answer.status == 1
    plane.grant(user.name, [rule for rule in rules("served") if "networkpolicies" not in rule["resources"]])
    eventually(
        lambda: plane.allowed(user.name, "patch", "networkpolicies", group="networking.k8s.io"),
        lambda allowed: not allowed, what="the verb is taken",
    )  # fmt: skip
    told_of = plugin(admin, "doctor", "-n", namespace, "-o", "json").findings["operator-permissions"]
    assert told_of["where"] == user.name
    assert f"patch networkpolicies.networking.k8s.io in {namespace}" in told_of["what"]
    assert "deployments" not in told_of["what"]


def test_a_server_that_does_not_answer_and_a_name_that_is_not_there_are_told(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    kubeconfig = plane.kubeconfig()
    answer = plugin(kubeconfig, "doctor", "nobody", "-n", namespace)
    assert (answer.status, answer.err) == (
        1, f"error: no KVServing nobody in namespace {namespace}; there are: none\n",
    )  # fmt: skip
    away = tmp_path / "away"
    away.write_text(kubeconfig.read_text().replace(plane.server, "https://127.0.0.1:1"))
    answer = plugin(away, "status")
    assert answer.status == 3
    assert "https://127.0.0.1:1 does not answer" in answer.err
    assert "Traceback" not in answer.err
    assert plane.api.find(path_of(namespace, "nobody")) is None


def refusal(plane: ControlPlane, pod: Json) -> str:
    """What the apiserver says of a pod, which is not kept; empty where it takes it."""
    try:
        plane.api.create(pod, dryRun="All")
    except ApiError as error:
        return str(error)
    return ""


def test_what_doctor_says_of_a_namespace_is_what_the_apiserver_refuses(plane: ControlPlane, namespace: str) -> None:
    rdma = {"rdma": {"resource": "rdma/hca"}}
    obj = serving(namespace, engine={"version": "0.33.0", "device": "gpu"}, transfer=rdma, router={"type": "none"},
                  decode={"replicas": 1, "resources": {"limits": {"memory": "20Gi"}}})  # fmt: skip
    plane.api.create(obj)
    deployment = next(
        manifest
        for manifest in planned(plane, plane.api.get(path_of(namespace)), own_namespace=namespace).objects
        if manifest["kind"] == "Deployment" and "-decode-" in manifest["metadata"]["name"]
    )
    template = deployment["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
           "metadata": {"name": "one", "namespace": namespace, "labels": template["metadata"]["labels"]}}  # fmt: skip
    kubeconfig = plane.kubeconfig()

    def told() -> dict[str, Json]:
        return plugin(kubeconfig, "doctor", "qwen", "-n", namespace, "--only", "findings", "-o", "json").findings

    of_namespace = {"pod-security", "quota-small", "quota-needs-resources", "limit-range", "kind-missing"}
    assert refusal(plane, pod) == ""
    assert not of_namespace & set(told())

    home = f"/api/v1/namespaces/{namespace}"
    plane.api.merge(home, {"metadata": {"labels": {ENFORCED: "baseline"}}})
    eventually(lambda: refusal(plane, pod), lambda said: "IPC_LOCK" in said, what="the standard refuses the pod")
    assert "capability IPC_LOCK" in told()["pod-security"]["what"]
    plane.api.merge(home, {"metadata": {"labels": {ENFORCED: "privileged"}}})

    metadata = {"name": "bounds", "namespace": namespace}
    plane.api.create({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata,
                      "spec": {"limits": [{"type": "Container", "max": {"memory": "10Gi"}}]}})  # fmt: skip
    eventually(
        lambda: refusal(plane, pod),
        lambda said: "maximum memory usage per Container is 10Gi" in said,
        what="the limit range refuses the pod",
    )
    found = told()
    assert "pod-security" not in found
    assert "memory 20Gi (at most 10Gi)" in found["limit-range"]["what"]
    plane.api.delete(f"{home}/limitranges/bounds")

    plane.api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team", "namespace": namespace},
                      "spec": {"hard": {"limits.cpu": "900", "pods": "1"}}})  # fmt: skip
    eventually(
        lambda: refusal(plane, pod),
        lambda said: "must specify limits.cpu" in said,
        what="the quota refuses the pod",
        timeout=60,
    )
    found = told()
    assert "limit-range" not in found
    assert "limits.cpu" in found["quota-needs-resources"]["what"]
    assert "pods 2 (of 1)" in found["quota-small"]["what"]


def test_a_cluster_is_asked_for_clocks_names_and_kinds(plane: ControlPlane, namespace: str) -> None:
    obj = serving(namespace, engine={"version": "0.33.0", "device": "gpu"}, router={"type": "none"},
                  decode={"replicas": 1, "nodes": 2, "parallelism": {"tensor": 2}})  # fmt: skip
    plane.api.create(obj)
    slices = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
    first, last = f"{namespace}-first", f"{namespace}-last"

    def beat(name: str, ahead: int) -> None:
        # As a kubelet does: its own time, which the apiserver notes with the time that it has itself.
        said = datetime.now(UTC) + timedelta(seconds=ahead)
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": said.strftime("%Y-%m-%dT%H:%M:%SZ")}
        plane.api.merge(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [ready]}})

    def told(*arguments: str) -> dict[str, Json]:
        return plugin(plane.kubeconfig(), "doctor", *arguments, "-n", namespace, "-o", "json").findings

    plane.api.create({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                      "metadata": {"name": "kube-dns-test", "namespace": "kube-system",
                                   "labels": {"kubernetes.io/service-name": "kube-dns"}},
                      "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": False}}]})  # fmt: skip
    try:
        for name, ahead in ((first, 0), (last, 40)):
            # Of an object that was made without any field the apiserver notes nothing later either.
            metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            plane.api.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
            beat(name, ahead)
        found = told()
        assert "clocks-differ" in found, json.dumps(plane.api.get(f"/api/v1/nodes/{last}"))
        assert (found["clocks-differ"]["severity"], found["clocks-differ"]["where"]) == ("error", f"node {last}")
        assert abs(float(found["clocks-differ"]["what"].split()[3]) - 40) <= 2
        assert found["dns-down"]["where"] == "Service kube-system/kube-dns"
        assert f"{namespace}/qwen" in found["kind-missing"]["what"]
        assert "LeaderWorkerSet" in found["kind-missing"]["what"]
        beat(last, 0)
        plane.api.merge(f"{slices}/kube-dns-test",
                        {"endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": True}}]})  # fmt: skip
        assert not {"clocks-differ", "dns-down"} & set(told())
    finally:
        for name in (first, last):
            plane.api.delete(f"/api/v1/nodes/{name}")
        plane.api.delete(f"{slices}/kube-dns-test")
    assert told("qwen", "--only", "findings")["kind-missing"]["where"].startswith("LeaderWorkerSet ")
