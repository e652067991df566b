"""The stand-in kubelet, seen as a controller sees it: through the apiserver and the real controller-manager."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Iterator

import pytest
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.pod_script import (
    READY,
    Report,
    completes,
    crash_loop,
    image_pull_error,
    never_ready,
    ready,
    unschedulable,
)
from e2e.controlplane.tests.objects import Json, condition, deployment, is_ready, pod


@pytest.fixture
def kubelet(control_plane: ControlPlane, namespace: str) -> Iterator[FakeKubelet]:
    with FakeKubelet(control_plane, namespace=namespace, node=f"node-{namespace}", capacity={"nvidia.com/gpu": 2}) as k:
        yield k


@pytest.fixture
def wait(control_plane: ControlPlane, namespace: str) -> Callable[..., Json]:
    def wait(name: str, condition: Callable[[Json | None], bool], what: str) -> Json:
        found = control_plane.api.wait(f"/api/v1/namespaces/{namespace}/pods/{name}", condition, what=what)
        return found or {}

    return wait


def state(obj: Json | None) -> Json:
    statuses = (obj or {}).get("status", {}).get("containerStatuses") or [{}]
    return dict(statuses[0])


@pytest.mark.usefixtures("kubelet")
def test_a_deployment_becomes_available(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.api.create(deployment(namespace, "web", 3))
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
    control_plane.api.wait(path, lambda d: (d or {}).get("status", {}).get("availableReplicas") == 3, what="available")


def test_pods_pass_through_pending_running_ready_in_order(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet
) -> None:
    kubelet.script({"app": "slow"}, ready(after=0.2, start_after=0.2))
    version = control_plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["metadata"]["resourceVersion"]
    control_plane.api.create(pod(namespace, "slow", {"app": "slow"}))
    seen = []
    events = control_plane.api.watch(f"/api/v1/namespaces/{namespace}/pods", timeout=20, resourceVersion=version)
    for event in events:
        found = event["object"]
        seen.append((bool(found["spec"].get("nodeName")), found["status"].get("phase"), is_ready(found)))
        if is_ready(found):
            break
    steps = [step for step, after in zip(seen, [*seen[1:], None], strict=True) if step != after]
    assert steps == [
        (False, "Pending", False),
        (True, "Pending", False),
        (True, "Running", False),
        (True, "Running", True),
    ]


def test_every_pod_has_its_own_loopback_address_and_node(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet, wait: Callable[..., Json]
) -> None:
    for name in ("a", "b", "c"):
        control_plane.api.create(pod(namespace, name))
    pods = [wait(name, is_ready, "ready") for name in ("a", "b", "c")]
    addresses = [p["status"]["podIP"] for p in pods]
    assert len(set(addresses)) == 3
    assert all(ipaddress.ip_address(a).is_loopback for a in addresses)
    assert set(kubelet.addresses().values()) == set(addresses)
    assert {p["spec"]["nodeName"] for p in pods} == {kubelet.node}
    node = control_plane.api.get(f"/api/v1/nodes/{kubelet.node}")
    assert is_ready(node)
    assert not node["spec"].get("taints")


def test_another_network_lets_services_have_endpoints(control_plane: ControlPlane) -> None:
    namespace = control_plane.namespace()
    control_plane.api.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": namespace},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        }
    )
    with FakeKubelet(control_plane, namespace=namespace, node=f"node-{namespace}", network="10.244.7.0/24") as kubelet:
        control_plane.api.create(deployment(namespace, "web", 2))
        path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        listed = control_plane.api.get(path)
        found = {}
        for event in control_plane.api.watch(path, timeout=30, resourceVersion=listed["metadata"]["resourceVersion"]):
            for endpoint in event["object"].get("endpoints") or []:
                found[endpoint["addresses"][0]] = endpoint["conditions"]["ready"]
            if sum(found.values()) == 2:
                break
        assert set(found) == set(kubelet.addresses().values())


@pytest.mark.usefixtures("kubelet")
def test_images_are_reported(control_plane: ControlPlane, namespace: str, wait: Callable[..., Json]) -> None:
    control_plane.api.create(pod(namespace, "a", image="registry.example/engine:7"))
    found = state(wait("a", is_ready, "ready"))
    assert found["image"] == "registry.example/engine:7"
    assert found["imageID"].startswith("registry.example/engine:7@sha256:")


def test_scripts_are_chosen_by_label_and_the_latest_wins(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet, wait: Callable[..., Json]
) -> None:
    kubelet.script({"role": "decode"}, never_ready())
    kubelet.script({"role": "prefill"}, never_ready())
    kubelet.script({"role": "prefill"}, ready())
    kubelet.script(lambda p: image_pull_error() if p["metadata"]["name"] == "odd" else None)
    for name, role in (("d", "decode"), ("p", "prefill"), ("odd", "prefill")):
        control_plane.api.create(pod(namespace, name, {"role": role}))
    wait("p", is_ready, "prefill ready")
    wait("odd", lambda p: state(p).get("state", {}).get("waiting", {}).get("reason") == "ErrImagePull", "pull error")
    found = wait("d", lambda p: (p or {})["status"]["phase"] == "Running", "decode running")
    assert condition(found, "Ready")["reason"] == "ContainersNotReady"


def test_a_crash_loop_counts_restarts(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet, wait: Callable[..., Json]
) -> None:
    kubelet.script({}, crash_loop(exit_code=3))
    control_plane.api.create(pod(namespace, "a"))
    found = state(wait("a", lambda p: state(p).get("restartCount", 0) >= 3, "three restarts"))
    assert found["lastState"]["terminated"]["exitCode"] == 3
    found = state(wait("a", lambda p: "waiting" in state(p).get("state", {}), "waiting"))
    assert found["state"]["waiting"]["reason"] == "CrashLoopBackOff"


def test_a_crashed_pod_comes_back_with_one_restart_more(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet, wait: Callable[..., Json]
) -> None:
    control_plane.api.create(pod(namespace, "a"))
    address = wait("a", is_ready, "ready")["status"]["podIP"]
    for restarts in (1, 2):
        kubelet.crash(namespace, "a", exit_code=137)
        found = wait("a", lambda p, n=restarts: is_ready(p) and state(p)["restartCount"] == n, "ready again")
        assert state(found)["lastState"]["terminated"]["exitCode"] == 137
        assert found["status"]["podIP"] == address


def test_readiness_can_be_taken_and_given_back(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet, wait: Callable[..., Json]
) -> None:
    control_plane.api.create(pod(namespace, "a"))
    wait("a", is_ready, "ready")
    kubelet.set_ready(namespace, "a", False)
    wait("a", lambda p: not is_ready(p), "not ready")
    kubelet.set_ready(namespace, "a", True)
    wait("a", is_ready, "ready again")


def test_an_evicted_pod_is_replaced_by_its_replica_set(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet, wait: Callable[..., Json]
) -> None:
    control_plane.api.create(deployment(namespace, "web", 1))
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
    control_plane.api.wait(path, lambda d: (d or {}).get("status", {}).get("readyReplicas") == 1, what="ready")
    first = control_plane.api.items(f"/api/v1/namespaces/{namespace}/pods")[0]["metadata"]["name"]
    kubelet.evict(namespace, first)
    assert wait(first, lambda p: (p or {})["status"]["phase"] == "Failed", "failed")["status"]["reason"] == "Evicted"
    control_plane.api.wait(path, lambda d: (d or {}).get("status", {}).get("readyReplicas") == 1, what="replaced")
    names = [p["metadata"]["name"] for p in control_plane.api.items(f"/api/v1/namespaces/{namespace}/pods")]
    assert len(names) == 2


def test_a_pod_that_completes_succeeds(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet, wait: Callable[..., Json]
) -> None:
    kubelet.script({}, completes())
    control_plane.api.create(pod(namespace, "a"))
    found = wait("a", lambda p: (p or {})["status"]["phase"] == "Succeeded", "succeeded")
    assert state(found)["state"]["terminated"]["exitCode"] == 0


def test_an_unschedulable_pod_says_why_until_it_fits(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet, wait: Callable[..., Json]
) -> None:
    kubelet.script({"app": "big"}, unschedulable("0/3 nodes are available: 3 Insufficient memory."))
    control_plane.api.create(pod(namespace, "big", {"app": "big"}))
    found = wait("big", lambda p: condition(p, "PodScheduled").get("reason") == "Unschedulable", "unschedulable")
    assert condition(found, "PodScheduled")["message"] == "0/3 nodes are available: 3 Insufficient memory."
    assert found["status"]["phase"] == "Pending"
    assert "nodeName" not in found["spec"]
    kubelet.script({"app": "big"}, ready())
    wait("big", is_ready, "ready")


@pytest.mark.usefixtures("kubelet")
def test_devices_are_counted_and_freed(control_plane: ControlPlane, namespace: str, wait: Callable[..., Json]) -> None:
    control_plane.api.create(pod(namespace, "first", devices=2))
    wait("first", is_ready, "ready")
    control_plane.api.create(pod(namespace, "second", devices=1))
    found = wait("second", lambda p: bool(condition(p, "PodScheduled")), "looked at")
    assert condition(found, "PodScheduled")["message"] == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    control_plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/first")
    wait("second", is_ready, "ready once the first is gone")


def test_a_deleted_pod_ends_in_its_own_time(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet, wait: Callable[..., Json]
) -> None:
    kubelet.script({"app": "quick"}, ready(stop_after=0.1))
    kubelet.script({"app": "stuck"}, ready(stop_after=3600))
    control_plane.api.create(pod(namespace, "quick", {"app": "quick"}, grace=600))
    control_plane.api.create(pod(namespace, "stuck", {"app": "stuck"}, grace=1))
    for name in ("quick", "stuck"):
        wait(name, is_ready, "ready")
        control_plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")
    wait("quick", lambda p: p is None, "gone before its grace is over")
    wait("stuck", lambda p: p is None, "killed at the end of its grace")


def test_a_deleted_pod_stays_while_it_drains(
    control_plane: ControlPlane, namespace: str, kubelet: FakeKubelet, wait: Callable[..., Json]
) -> None:
    kubelet.script({}, ready(stop_after=3600))
    control_plane.api.create(pod(namespace, "a", grace=600))
    wait("a", is_ready, "ready")
    control_plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/a")
    found = wait("a", lambda p: "deletionTimestamp" in (p or {})["metadata"], "terminating")
    assert found["status"]["phase"] == "Running"
    control_plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/a", gracePeriodSeconds=0)
    wait("a", lambda p: p is None, "gone")


def test_it_goes_on_after_the_apiserver_was_restarted(own_control_plane: ControlPlane) -> None:
    namespace = own_control_plane.namespace()
    with FakeKubelet(own_control_plane):
        own_control_plane.api.create(pod(namespace, "before"))
        path = f"/api/v1/namespaces/{namespace}/pods"
        own_control_plane.api.wait(f"{path}/before", is_ready, what="ready")
        own_control_plane.apiserver.restart()
        own_control_plane.api.create(pod(namespace, "after"))
        own_control_plane.api.wait(f"{path}/after", is_ready, what="ready after the restart")
        own_control_plane.api.delete(f"{path}/before")
        own_control_plane.api.wait(f"{path}/before", lambda p: p is None, what="gone after the restart")


def test_pods_of_others_are_left_alone(control_plane: ControlPlane, namespace: str) -> None:
    with FakeKubelet(control_plane, namespace=namespace, node=f"node-{namespace}", selector="mine=yes"):
        control_plane.api.create(pod(namespace, "other"))
        control_plane.api.create(pod(namespace, "mine", {"mine": "yes"}))
        control_plane.api.wait(f"/api/v1/namespaces/{namespace}/pods/mine", is_ready, what="ready")
        assert "nodeName" not in control_plane.api.get(f"/api/v1/namespaces/{namespace}/pods/other")["spec"]


def test_another_runtime_can_run_the_pods(control_plane: ControlPlane, namespace: str) -> None:
    class Recording:
        def __init__(self) -> None:
            self.log: list[str] = []

        async def run(self, pod: Json, address: str, report: Report) -> None:
            self.log.append(f"run {pod['metadata']['name']} on {address}")
            await report(READY)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            self.log.append("cancelled")

        async def stop(self, pod: Json) -> None:
            self.log.append(f"stop {pod['metadata']['name']}")

        async def close(self) -> None:
            self.log.append("close")

    runtime = Recording()
    path = f"/api/v1/namespaces/{namespace}/pods/a"
    with FakeKubelet(control_plane, namespace=namespace, node=f"node-{namespace}", runtime=runtime):
        control_plane.api.create(pod(namespace, "a"))
        address = (control_plane.api.wait(path, is_ready, what="ready") or {})["status"]["podIP"]
        control_plane.api.delete(path)
        control_plane.api.wait(path, lambda p: p is None, what="gone")
    assert runtime.log == [f"run a on {address}", "stop a", "cancelled", "close"]


def test_an_error_inside_is_raised_at_the_end(control_plane: ControlPlane, namespace: str) -> None:
    class Broken:
        async def run(self, pod: Json, address: str, report: Report) -> None:
            if pod["metadata"]["name"] == "broken":
                raise LookupError("no such device")
            await report(READY)

        async def stop(self, pod: Json) -> None:
            raise AssertionError("nothing is deleted here")

        async def close(self) -> None:
            return

    def run() -> None:
        with FakeKubelet(control_plane, namespace=namespace, node=f"node-{namespace}", runtime=Broken()):
            for name in ("broken", "next"):
                control_plane.api.create(pod(namespace, name))
            control_plane.api.wait(f"/api/v1/namespaces/{namespace}/pods/next", is_ready, what="ready")

    with pytest.raises(RuntimeError, match="failed 1 times") as error:
        run()
    assert isinstance(error.value.__cause__, LookupError)


@pytest.mark.usefixtures("kubelet")
def test_a_quota_leaves_a_replica_set_short(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.quota(namespace, {"pods": "1"})
    control_plane.api.create(deployment(namespace, "web", 2))
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
    found = control_plane.api.wait(
        path, lambda d: condition(d, "ReplicaFailure").get("status") == "True", what="replica failure"
    )
    assert "exceeded quota" in condition(found, "ReplicaFailure")["message"]
