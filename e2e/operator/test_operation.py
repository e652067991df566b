"""The operator as a process: permissions, Lease, crashes, faults of the apiserver, health."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.faults import Cut, Delay, DropEvent, EventMatch, Match, Status
from e2e.operator.objects import condition, eventually, expected, path_of, planned, serving
from e2e.operator.running import operator_user
from e2e.operator.waiting import settle, wait_children, wait_for

from kvserving_operator.control.permissions import rules


def test_missing_permissions_end_the_process_with_each_verb_named(
    plane: ControlPlane, namespace: str, start: Any
) -> None:
    user = operator_user(plane, namespace)
    plane.grant(user.name, [rule for rule in rules("served") if "networkpolicies" not in rule["resources"]])
    eventually(
        lambda: plane.allowed(user.name, "patch", "networkpolicies", group="networking.k8s.io"),
        lambda allowed: not allowed,
        what="the verb is taken",
    )
    operator = start(wait=False, stub=False)
    assert operator.wait() == 3
    log = operator.log.read_text()
    verbs = "create, delete, get, list, patch, watch"
    assert f"{verbs} networkpolicies.networking.k8s.io (in namespace {namespace})" in log
    assert "deployments" not in log


def test_a_verb_taken_at_run_time_is_named_and_given_back_heals(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start()
    user = f"system:serviceaccount:{namespace}:kvserving-operator"
    less = [
        {**r, "verbs": [v for v in r["verbs"] if v != "patch" or "services" not in r["resources"]]}
        for r in rules("served")
    ]
    plane.grant(user, less)
    eventually(lambda: plane.allowed(user, "patch", "services"), lambda allowed: not allowed, what="the verb is taken")
    obj = serving(namespace)
    plane.api.create(obj)
    found = plane.api.wait(
        path_of(namespace), lambda o: condition(o, "Degraded").get("reason") == "Forbidden", what="Forbidden"
    )
    assert "patch" in condition(found, "Degraded")["message"]
    assert operator.process is not None
    assert operator.process.poll() is None
    plane.grant(user, rules("served"))
    wait_for(plane, obj, "Ready", timeout=90)


def test_of_two_operators_one_writes_and_the_other_takes_over(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    first = start("--identity=first")
    second = start("--identity=second", wait=False)
    eventually(lambda: ready_role(second), lambda role: role == "standby", what="the second stands by", timeout=90)
    settle(plane, serving(namespace))
    assert second.metric("kvserving_operator_api_requests_total", verb="patch") == 0
    assert first.stop() == 0
    started = time.monotonic()
    second.wait_ready()
    assert time.monotonic() - started < 10, "the Lease was not released"
    plane.api.merge(path_of(namespace), {"spec": {"decode": {"replicas": 1}}})
    plane.api.wait(
        path_of(namespace),
        lambda o: o is not None and o["status"]["roles"]["decode"]["summary"] == "1/1",
        what="one decode",
        timeout=20,
    )


def ready_role(operator: Any) -> str:
    try:
        return str(json.loads(operator.get("/readyz").data)["role"])
    except urllib3.exceptions.HTTPError:
        return ""


def test_a_lost_lease_ends_the_process_and_nothing_is_written_after(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--lease-duration=5", "--renew-deadline=3", "--retry-period=1")
    settle(plane, serving(namespace))
    with proxy.fault(Match(resource="leases"), Status(503)):
        cut = time.monotonic()
        assert operator.wait(20) == 4
        assert time.monotonic() - cut < 10
    assert proxy.writes(since=cut + 3.5) == []
    assert "was not renewed" in operator.log.read_text()


def test_a_process_that_slept_over_its_lease_writes_nothing(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--lease-duration=5", "--renew-deadline=3", "--retry-period=1", "--resync=0.5")
    settle(plane, serving(namespace))
    proxy.wait_quiet(1)
    assert operator.process is not None
    operator.process.send_signal(signal.SIGSTOP)
    time.sleep(5.5)  # the time for which the process is stopped is the fault itself
    plane.api.delete(f"/api/v1/namespaces/{namespace}/services/qwen")
    plane.api.apply({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "kvserving-operator", "namespace": namespace},
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 60, "renewTime": "2030-01-01T00:00:00.000000Z",
                 "acquireTime": "2030-01-01T00:00:00.000000Z"},
    })  # fmt: skip
    woken = time.monotonic()
    operator.process.send_signal(signal.SIGCONT)
    assert operator.wait(20) == 4
    assert proxy.writes(since=woken) == []


def test_errors_and_cut_connections_of_a_third_of_all_requests_are_survived(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    start("--no-elect", "--resync=2")
    obj = serving(namespace)
    with (
        proxy.fault(Match(probability=0.2, seed=1, where=lambda info, _: info.verb != "watch"), Status(500)),
        proxy.fault(Match(probability=0.1, seed=2, where=lambda info, _: info.verb != "watch"), Cut()),
    ):
        plane.api.create(obj)
        for replicas in (1, 3, 2):
            plane.api.merge(path_of(namespace), {"spec": {"decode": {"replicas": replicas}}})
            time.sleep(1)
    wait_for(plane, obj, "Ready", timeout=90)
    found = plane.api.get(path_of(namespace))
    assert found["status"]["roles"]["decode"]["summary"] == "2/2"
    wait_children(plane, namespace, expected(planned(plane, obj, own_namespace=namespace)))


def test_retry_after_is_honoured(plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any) -> None:
    start()
    with proxy.fault(Match(verbs={"patch"}, resource="services", times=1), Status(429, retry_after=4)) as rule:
        obj = serving(namespace)
        plane.api.create(obj)
        eventually(lambda: rule.hits, bool, what="the 429")
    wait_children(plane, namespace, expected(planned(plane, obj, own_namespace=namespace)))
    attempts = [r.at for r in proxy.records(Match(verbs={"patch"}, resource="services"))]
    assert attempts[1] - attempts[0] >= 4


def test_a_deletion_that_the_watch_never_told_is_healed_by_the_resync(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--resync=1")
    settle(plane, serving(namespace))
    with proxy.fault(EventMatch(resource="services", types={"DELETED"}), DropEvent()) as rule:
        plane.api.delete(f"/api/v1/namespaces/{namespace}/services/qwen")
        plane.api.wait(
            f"/api/v1/namespaces/{namespace}/services/qwen",
            lambda o: o is not None,
            what="the Service again",
            timeout=20,
        )
        assert rule.hits
    assert operator.metric("kvserving_operator_resync_healed_total") >= 1


def test_credentials_that_are_no_longer_accepted_end_the_process(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any
) -> None:
    operator = start("--no-elect")
    with proxy.fault(Match(), Status(401)):
        proxy.cut_all()
        assert operator.wait(60) != 0


def test_an_operator_of_all_namespaces_makes_children_in_each(plane: ControlPlane, namespace: str, start: Any) -> None:
    start("--no-elect", everywhere=True)
    other = plane.namespace("kvs")
    for where in (namespace, other):
        plane.api.create(serving(where))
    for where in (namespace, other):
        wait_children(plane, where, expected(planned(plane, serving(where), own_namespace=namespace)))
    plane.api.delete(f"/api/v1/namespaces/{other}")


def test_the_process_stops_on_a_signal_and_releases_its_lease(plane: ControlPlane, namespace: str, start: Any) -> None:
    operator = start(stub=False)
    started = time.monotonic()
    assert operator.stop() == 0
    assert time.monotonic() - started < 10
    lease = plane.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/kvserving-operator")
    assert not lease["spec"].get("holderIdentity")


@pytest.mark.parametrize("held", ["selfsubjectaccessreviews", "deployments"])
def test_a_signal_before_everything_is_listed_ends_the_process(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, held: str
) -> None:
    with proxy.fault(Match(resource=held), Delay(120)) as rule:
        operator = start(wait=False)
        eventually(lambda: rule.hits, bool, what=f"a request for {held} waits")
        assert operator.process is not None
        operator.process.send_signal(signal.SIGTERM)
        assert operator.wait() == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "it is no kubeconfig"),
        ("[]", "it is no kubeconfig"),
        ("apiVersion: v1\nkind: Config\n", "name a file with --kubeconfig"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_told_by_name(
    plane: ControlPlane, namespace: str, start: Any, tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "no-kubeconfig"
    file.write_text(text)
    operator = start(f"--kubeconfig={file}", wait=False, stub=False)
    assert operator.wait() == 5
    assert str(file) in operator.log.read_text()
    assert told in operator.log.read_text()
    assert "Traceback" not in operator.log.read_text()


def test_a_client_certificate_that_is_missing_is_told(
    plane: ControlPlane, namespace: str, start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "kubeconfig"
    config = yaml.safe_load(Path(plane.kubeconfig()).read_text())
    config["users"][0]["user"] = {"client-certificate": "gone.crt", "client-key": "gone.key"}
    file.write_text(yaml.safe_dump(config))
    operator = start(f"--kubeconfig={file}", wait=False, stub=False)
    assert operator.wait() == 5
    assert "gone.crt" in operator.log.read_text()
    assert "Traceback" not in operator.log.read_text()


def test_one_that_stands_by_says_for_whom(plane: ControlPlane, namespace: str, start: Any) -> None:
    start("--identity=first")
    second = start("--identity=second", wait=False)
    eventually(second.lines, lambda lines: any("standing by: first holds" in line["message"] for line in lines),
               what="the holder is named")  # fmt: skip


def test_recomputing_is_told_within_a_minute_and_recovers(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, verdict: Any
) -> None:
    start()
    obj = serving(namespace, transfer={"verify": {"interval": "2s"}})
    settle(plane, obj)
    verdict.write_text("recomputed")
    found = wait_for(plane, obj, "TransferVerified", "False", timeout=60)
    assert condition(found, "TransferVerified")["reason"] == "RecomputingKV"
    assert condition(found, "Degraded")["status"] == "True"
    assert condition(found, "Available")["status"] == "True"
    eventually(
        lambda: plane.api.items(
            f"/api/v1/namespaces/{namespace}/events", fieldSelector="involvedObject.kind=KVServing"
        ),
        lambda events: any(e["reason"] == "TransferNotVerified" and e["type"] == "Warning" for e in events),
        what="an event about it",
    )
    verdict.write_text("ok")
    wait_for(plane, obj, "Ready", timeout=90)
