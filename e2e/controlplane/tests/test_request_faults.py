"""Faults of requests: that every one really happens, and what it leaves behind it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import urllib3
from e2e.controlplane.api import Api, ApiError
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.faults import Call, Cut, Delay, Duplicate, Match, Stale, Status
from e2e.controlplane.request_info import RequestInfo
from e2e.controlplane.tests.objects import config_map
from e2e.controlplane.tests.waiting import until


@pytest.mark.parametrize(
    ("code", "reason"),
    [(401, "Unauthorized"), (409, "Conflict"), (410, "Expired"), (429, "TooManyRequests"), (500, "InternalError")],
)
def test_a_status_is_answered_and_the_request_never_happens(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, namespace: str, maps: str, code: int, reason: str
) -> None:
    with (
        proxy.fault(Match(verbs={"create"}, resource="configmaps"), Status(code)) as rule,
        pytest.raises(ApiError) as refused,
    ):
        api.create(config_map(namespace))
    assert (refused.value.status, refused.value.reason, rule.hits) == (code, reason, 1)
    assert control_plane.api.find(f"{maps}/a") is None
    api.create(config_map(namespace))
    assert [(r.status, r.faults) for r in proxy.writes()] == [(code, (rule.fault,)), (201, ())]


def test_retry_after_is_sent_in_the_header_and_in_the_body(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, maps: str
) -> None:
    proxy.add(Match(resource="configmaps"), Status(429, retry_after=7))
    pool = urllib3.PoolManager(ca_certs=str(control_plane.ca_file))
    answer = pool.request("GET", proxy.url + maps, retries=False)
    assert answer.headers["Retry-After"] == "7"
    assert json.loads(answer.data)["details"]["retryAfterSeconds"] == 7


def test_a_status_after_the_fact_hides_a_write_that_happened(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, namespace: str, maps: str
) -> None:
    proxy.add(Match(verbs={"create"}), Status(504, when="after"))
    with pytest.raises(ApiError, match="504 Timeout"):
        api.create(config_map(namespace))
    assert control_plane.api.find(f"{maps}/a") is not None


@pytest.mark.parametrize(("when", "happened"), [("before", False), ("after", True)])
def test_a_cut_connection_loses_the_request_or_only_its_answer(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, namespace: str, maps: str, when: Any, happened: bool
) -> None:
    with (
        proxy.fault(Match.writes(nth=1), Cut(when)) as rule,
        pytest.raises(urllib3.exceptions.ProtocolError),
    ):
        api.create(config_map(namespace))
    assert rule.hits == 1
    assert (control_plane.api.find(f"{maps}/a") is not None) is happened
    assert [r.status for r in proxy.writes()] == [0]


def test_a_delay_holds_the_request(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, namespace: str, maps: str
) -> None:
    started = time.monotonic()
    with proxy.fault(Match(verbs={"create"}), Delay(0.5)):
        api.create(config_map(namespace))
    assert time.monotonic() - started >= 0.5


def test_a_duplicate_reaches_the_apiserver_twice(api: Api, proxy: FaultProxy, namespace: str) -> None:
    proxy.add(Match(verbs={"create"}), Duplicate())
    with pytest.raises(ApiError) as refused:
        api.create(config_map(namespace))
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")


@pytest.mark.parametrize(("when", "happened"), [("before", 2), ("after", 3)])
def test_a_crash_point_stops_the_client_at_the_nth_write(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, namespace: str, when: Any, happened: int
) -> None:
    killed: list[RequestInfo] = []
    proxy.add(Match.writes(nth=3), Call(killed.append, when=when, then="cut"))
    api.create(config_map(namespace, "m0"))
    api.create(config_map(namespace, "m1"))
    with pytest.raises(urllib3.exceptions.ProtocolError):
        api.create(config_map(namespace, "m2"))
    assert [info.name for info in killed] == ["m2"]
    names = {m["metadata"]["name"] for m in control_plane.api.items(f"/api/v1/namespaces/{namespace}/configmaps")}
    assert len(names - {"kube-root-ca.crt"}) == happened


def test_an_error_in_a_hook_is_raised_when_the_proxy_is_left(control_plane: ControlPlane, maps: str) -> None:
    def fails(info: RequestInfo) -> None:
        raise LookupError(info.resource)

    proxy = FaultProxy(control_plane)

    def run() -> None:
        with proxy:
            proxy.add(Match(verbs={"list"}), Call(fails))
            control_plane.api_as(control_plane.admin, server=proxy.url).get(maps)

    with pytest.raises(RuntimeError, match="the fault proxy failed 1 times") as error:
        run()
    assert isinstance(error.value.__cause__, LookupError)


def test_reads_and_lists_of_a_version_show_that_moment(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, namespace: str, maps: str
) -> None:
    control_plane.api.create(config_map(namespace, "old", x="1"))
    control_plane.api.create(config_map(namespace, "deleted"))
    moment = proxy.version()
    control_plane.api.merge(f"{maps}/old", {"data": {"x": "2"}})
    control_plane.api.delete(f"{maps}/deleted")
    control_plane.api.create(config_map(namespace, "new"))
    with proxy.fault(Match(verbs={"get", "list"}, resource="configmaps"), Stale(version=moment)) as rule:
        listed = {m["metadata"]["name"]: m.get("data") for m in api.items(maps)}
        old = api.get(f"{maps}/old")
        with pytest.raises(ApiError) as missing:
            api.get(f"{maps}/new")
    assert rule.hits == 3
    assert listed.keys() - {"kube-root-ca.crt"} == {"old", "deleted"}
    assert listed["old"] == {"x": "1"}
    assert (old["kind"], old["apiVersion"], old["data"]) == ("ConfigMap", "v1", {"x": "1"})
    assert missing.value.status == 404
    names = {m["metadata"]["name"] for m in api.items(maps)}
    assert names - {"kube-root-ca.crt"} == {"old", "new"}


def test_a_lag_shows_changes_that_much_later(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, namespace: str, maps: str
) -> None:
    control_plane.api.create(config_map(namespace, "a", x="1"))
    lag = 3.0
    proxy.add(Match(verbs={"list"}, resource="configmaps"), Stale(lag))

    def shown() -> str | None:
        return next((m["data"]["x"] for m in api.items(maps) if m["metadata"]["name"] == "a"), None)

    until(lambda: shown() == "1")
    control_plane.api.merge(f"{maps}/a", {"data": {"x": "2"}})
    changed = time.monotonic()
    until(lambda: shown() == "2")
    assert time.monotonic() - changed >= lag
