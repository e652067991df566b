"""Watches that lie: stale states, lost and silent events, expired and refused lists."""

from __future__ import annotations

import time
from typing import Any

import pytest
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.faults import DropEvent, DuplicateEvent, EventMatch, Match, Stale, StallWatch, Status
from e2e.controlplane.fixtures import CRDS
from e2e.operator.objects import children, eventually, path_of, serving
from e2e.operator.waiting import settle, uids, wait_for, wait_planned

from kvserving_operator.control.exit_codes import ExitCode

READS = frozenset({"get", "list", "watch"})
# The proxy answers a stale read of one object from a list, and the operator may not list Secrets.
LAGS = Match(verbs=READS, where=lambda info, _: info.resource != "secrets")


def wait_one_decode(plane: ControlPlane, namespace: str) -> None:
    """Return once one decode of one is left; a surplus engine is counted until it has stopped."""
    eventually(
        lambda: wait_planned(plane, namespace)["status"]["roles"]["decode"]["summary"],
        lambda summary: summary == "1/1",
        what="one decode of one",
    )


def test_an_operator_that_starts_with_a_stale_view_deletes_and_doubles_nothing(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--no-elect", "--resync=1")
    settle(plane, serving(namespace, cache={"l1": {"size": "8Gi"}}))
    past = proxy.version()
    # The past knows neither the store nor the new Service, and still has the former one.
    plane.api.merge(path_of(namespace), {"spec": {"cache": {"l2": {"size": "64Gi"}}, "decode": {"replicas": 3}}})
    wait_planned(plane, namespace)
    former = plane.api.get(f"/api/v1/namespaces/{namespace}/services/qwen")["metadata"]["uid"]
    plane.api.delete(f"/api/v1/namespaces/{namespace}/services/qwen")
    eventually(
        lambda: uids(plane, namespace).get(("Service", "qwen"), former), lambda uid: uid != former, what="a new Service"
    )
    wait_planned(plane, namespace)
    proxy.wait_quiet(1)
    before = uids(plane, namespace)
    operator.kill()
    with proxy.fault(LAGS, Stale(version=past)) as rule:
        operator.start()
        eventually(lambda: operator.metric("kvserving_operator_resyncs_total"), lambda n: n >= 3, what="three resyncs")
        assert rule.hits
        assert uids(plane, namespace) == before
    wait_planned(plane, namespace)
    assert uids(plane, namespace) == before


def test_an_object_that_a_stale_list_lacks_is_not_forgotten(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--no-elect", "--resync=0.5")
    past = proxy.version()
    settle(plane, serving(namespace))
    with proxy.fault(Match(verbs=frozenset({"list"})), Stale(version=past)):
        done = operator.metric("kvserving_operator_resyncs_total")
        eventually(lambda: operator.metric("kvserving_operator_resyncs_total"), lambda n: n >= done + 2, what="resyncs")
        # Looked at before anything is deleted in truth: a list may be quicker than the watch, which counts as well.
        assert operator.metric("kvserving_operator_resync_healed_total") == 0
    plane.api.merge(path_of(namespace), {"spec": {"decode": {"replicas": 1}}})
    wait_one_decode(plane, namespace)


@pytest.mark.parametrize("fault", [DropEvent(), DuplicateEvent()], ids=["lost", "told_twice"])
def test_events_that_are_all_lost_or_told_twice_change_nothing(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet, fault: Any
) -> None:
    start("--no-elect", "--resync=0.5")
    with proxy.fault(EventMatch(), fault) as rule:
        plane.api.create(serving(namespace))
        wait_planned(plane, namespace)
        first = uids(plane, namespace)
        plane.api.merge(path_of(namespace), {"spec": {"decode": {"replicas": 1}}})
        plane.api.delete(f"/api/v1/namespaces/{namespace}/services/qwen")
        eventually(lambda: ("Service", "qwen") in uids(plane, namespace), bool, what="the Service again")
        wait_planned(plane, namespace)
        assert rule.hits > 20
    second = uids(plane, namespace)
    assert {identity for identity in first if first[identity] != second.get(identity)} == {("Service", "qwen")}


def test_a_watch_that_stands_still_without_an_end_is_opened_anew(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    start("--no-elect", env={"KVSERVING_TEST_INACTIVITY": "5"})
    settle(plane, serving(namespace))
    # No resync would help within the time: those of the start are over, the next comes after most of a minute.
    proxy.wait_quiet(1.5)
    stalled = time.monotonic()
    rule = proxy.add(EventMatch(resource="kvservings", times=1), StallWatch())
    plane.api.merge(path_of(namespace), {"spec": {"decode": {"replicas": 1}}})
    wait_one_decode(plane, namespace)
    assert time.monotonic() - stalled > 2, "the watch did not stand still"
    assert rule.hits == 1


def test_a_watch_that_is_refused_for_good_ends_the_process_and_says_why(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any
) -> None:
    operator = start("--no-elect", env={"KVSERVING_TEST_RETRIES": "3"})
    plane.api.create(serving(namespace))
    eventually(lambda: len(children(plane, namespace)), lambda n: n >= 5, what="children")
    with proxy.fault(Match(verbs=frozenset({"list", "watch"}), resource="services"), Status(403)):
        proxy.cut_all()
        code = operator.wait(60)
    assert code == ExitCode.PERMISSIONS
    errors = [line for line in operator.lines() if line["level"] in ("error", "critical")]
    assert any("services" in line["message"] for line in errors), operator.tail()


def test_a_crd_that_is_deleted_ends_the_process_and_is_named_with_the_way_out(
    plane: ControlPlane, namespace: str, start: Any
) -> None:
    operator = start("--no-elect")
    plane.api.create(serving(namespace))
    eventually(lambda: len(children(plane, namespace)), lambda n: n >= 5, what="children")
    try:
        plane.api.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/kvservings.kvserving.dev")
        code = operator.wait(60)
    finally:
        plane.apply_crds(CRDS)
    assert code == ExitCode.CLUSTER
    errors = [line["message"] for line in operator.lines() if line["level"] == "error"]
    assert any("the CRD of KVServing (" in said and "apply the CRDs" in said for said in errors), operator.tail()


def test_secrets_are_read_by_name_alone(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--resync=0.5")
    settle(plane, serving(namespace, cache={"l1": {"size": "8Gi"}, "l2": {"size": "64Gi"}}))
    eventually(lambda: operator.metric("kvserving_operator_resyncs_total"), lambda n: n >= 3, what="three resyncs")
    asked = {(r.info.verb, r.info.name) for r in proxy.records(Match(resource="secrets"))}
    assert asked == {("create", "qwen-keys"), ("create", "qwen-store"), ("get", "qwen-keys"), ("get", "qwen-store")}


def test_a_change_is_seen_although_lists_and_watches_lag_by_seconds(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--no-elect", "--resync=0.5")
    settle(plane, serving(namespace))
    with proxy.fault(LAGS, Stale(seconds=3)) as rule:
        proxy.cut_all(Match(verbs=frozenset({"watch"})))
        for replicas in (1, 4, 2, 3):
            plane.api.merge(path_of(namespace), {"spec": {"decode": {"replicas": replicas}}})
            wait_for(plane, serving(namespace), "DecodeReady")
        plane.api.delete(f"/api/v1/namespaces/{namespace}/services/qwen")
        eventually(lambda: ("Service", "qwen") in uids(plane, namespace), bool, what="the Service again")
        wait_planned(plane, namespace)
        assert rule.hits
    assert wait_planned(plane, namespace)["status"]["roles"]["decode"]["summary"] == "3/3"
    assert operator.process is not None
    assert operator.process.poll() is None
