"""Faults of watches, on watches that are open already."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import urllib3
from e2e.controlplane.api import Api, ApiError, Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.faults import (
    CutWatch,
    DelayEvents,
    DropEvent,
    DuplicateEvent,
    EventMatch,
    Match,
    Stale,
    StallWatch,
    Status,
    WatchGone,
)
from e2e.controlplane.tests.objects import config_map
from e2e.controlplane.tests.waiting import until

END = {"type": "END"}
CUT = {"type": "CUT"}


class Watching:
    """A watch of config maps in a thread; its events come by ``next``."""

    def __init__(self, api: Api, path: str, **query: object) -> None:
        self._events: queue.Queue[Json] = queue.Queue()
        self._thread = threading.Thread(target=self._run, args=(api, path, query), daemon=True)
        self._thread.start()

    def _run(self, api: Api, path: str, query: dict[str, object]) -> None:
        try:
            for event in api.watch(path, timeout=60, **query):
                self._events.put(event)
            self._events.put(END)
        except urllib3.exceptions.HTTPError:
            self._events.put(CUT)

    def next(self, timeout: float = 20) -> tuple[str, str]:
        """Return type and name of the next event."""
        event = self._events.get(timeout=timeout)
        return event["type"], event.get("object", {}).get("metadata", {}).get("name", "")

    def silent_for(self, seconds: float) -> bool:
        """Whether nothing comes in that time."""
        try:
            self._events.get(timeout=seconds)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def watching(control_plane: ControlPlane, proxy: FaultProxy, maps: str) -> Watching:
    """A watch through the proxy, open before the test adds rules; ``control_plane.api`` makes the events."""
    control_plane.api.wait(f"{maps}/kube-root-ca.crt", lambda o: o is not None, what="the certificate bundle")
    version = control_plane.api.get(maps)["metadata"]["resourceVersion"]
    api = control_plane.api_as(control_plane.admin, server=proxy.url)
    found = Watching(api, maps, resourceVersion=version)
    proxy.wait(lambda records: any(r.info.verb == "watch" for r in records), what="the watch is open")
    return found


def test_events_come_one_by_one_as_they_happen(control_plane: ControlPlane, watching: Watching, namespace: str) -> None:
    for name in ("a", "b", "c"):
        control_plane.api.create(config_map(namespace, name))
        assert watching.next() == ("ADDED", name)


def test_an_event_larger_than_any_buffer_passes_whole(
    control_plane: ControlPlane, watching: Watching, namespace: str
) -> None:
    control_plane.api.create(config_map(namespace, "large", x="y" * 900_000))
    assert watching.next() == ("ADDED", "large")


def test_a_watch_passes_byte_for_byte(
    control_plane: ControlPlane, proxy: FaultProxy, namespace: str, maps: str
) -> None:
    control_plane.api.create(config_map(namespace, "a", x="ü"))
    version = control_plane.api.get(maps)["metadata"]["resourceVersion"]
    control_plane.api.merge(f"{maps}/a", {"data": {"y": "1"}})
    texts = []
    for server in (control_plane.server, proxy.url):
        pool = urllib3.PoolManager(ca_certs=str(control_plane.ca_file))
        headers = {"Authorization": f"Bearer {control_plane.admin.token}"}
        query = f"?watch=true&timeoutSeconds=1&resourceVersion={version}&fieldSelector=metadata.name%3Da"
        texts.append(pool.request("GET", server + maps + query, headers=headers).data)
    assert texts[0] == texts[1]
    assert json.loads(texts[0].splitlines()[0])["object"]["data"]["y"] == "1"


def test_one_event_is_dropped_and_the_next_is_not(
    control_plane: ControlPlane, proxy: FaultProxy, watching: Watching, namespace: str
) -> None:
    rule = proxy.add(EventMatch(resource="configmaps", types={"ADDED"}, nth=2), DropEvent())
    for name in ("a", "b", "c"):
        control_plane.api.create(config_map(namespace, name))
    assert [watching.next(), watching.next()] == [("ADDED", "a"), ("ADDED", "c")]
    assert rule.hits == 1


def test_deletions_of_one_object_can_be_hidden(
    control_plane: ControlPlane, proxy: FaultProxy, watching: Watching, namespace: str, maps: str
) -> None:
    proxy.add(EventMatch(types={"DELETED"}, name="a"), DropEvent())
    for name in ("a", "b"):
        control_plane.api.create(config_map(namespace, name))
        control_plane.api.delete(f"{maps}/{name}")
    assert [watching.next() for _ in range(3)] == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "b")]


def test_an_event_comes_twice(
    control_plane: ControlPlane, proxy: FaultProxy, watching: Watching, namespace: str
) -> None:
    proxy.add(EventMatch(nth=1), DuplicateEvent())
    for name in ("a", "b"):
        control_plane.api.create(config_map(namespace, name))
    assert [watching.next() for _ in range(3)] == [("ADDED", "a"), ("ADDED", "a"), ("ADDED", "b")]


def test_delays_of_events_do_not_add_up(
    control_plane: ControlPlane, proxy: FaultProxy, watching: Watching, namespace: str
) -> None:
    proxy.add(EventMatch(), DelayEvents(1.5))
    started = time.monotonic()
    for number in range(6):
        control_plane.api.create(config_map(namespace, f"m{number}"))
    written = time.monotonic() - started
    assert watching.next() == ("ADDED", "m0")
    assert time.monotonic() - started >= 1.5
    for number in range(1, 6):
        assert watching.next() == ("ADDED", f"m{number}")
    assert time.monotonic() - started < written + 6 * 1.5


def test_a_stalled_watch_stays_open_and_silent_until_it_is_let_go(
    control_plane: ControlPlane, proxy: FaultProxy, watching: Watching, namespace: str
) -> None:
    with proxy.fault(EventMatch(), StallWatch()) as rule:
        control_plane.api.create(config_map(namespace, "a"))
        control_plane.api.create(config_map(namespace, "b"))
        assert watching.silent_for(1)
        assert rule.hits == 1
        api = control_plane.api_as(control_plane.admin, server=proxy.url)
        assert api.get(f"/api/v1/namespaces/{namespace}/configmaps/a")
    assert [watching.next(), watching.next()] == [("ADDED", "a"), ("ADDED", "b")]


def test_a_watch_is_cut_at_an_event(
    control_plane: ControlPlane, proxy: FaultProxy, watching: Watching, namespace: str
) -> None:
    proxy.add(EventMatch(nth=2), CutWatch())
    for name in ("a", "b"):
        control_plane.api.create(config_map(namespace, name))
    assert [watching.next(), watching.next()] == [("ADDED", "a"), ("CUT", "")]


def test_open_watches_are_cut_from_outside(proxy: FaultProxy, watching: Watching) -> None:
    assert proxy.cut_all(Match(resource="pods")) == 0
    assert proxy.cut_all(Match(verbs={"watch"}, resource="configmaps")) == 1
    assert watching.next() == ("CUT", "")


def test_a_watch_is_told_that_its_version_is_gone(
    control_plane: ControlPlane, proxy: FaultProxy, watching: Watching, namespace: str
) -> None:
    proxy.add(EventMatch(nth=1), WatchGone())
    control_plane.api.create(config_map(namespace, "a"))
    assert watching.next() == ("ERROR", "")
    assert watching.next() == ("END", "")


def test_opening_a_watch_can_be_refused_while_lists_work(
    control_plane: ControlPlane, proxy: FaultProxy, maps: str
) -> None:
    proxy.add(Match(verbs={"watch"}), Status(410))
    api = control_plane.api_as(control_plane.admin, server=proxy.url)
    assert api.get(maps)["kind"] == "ConfigMapList"
    with pytest.raises(ApiError) as refused:
        list(api.watch(maps, timeout=1))
    assert (refused.value.status, refused.value.reason) == (410, "Expired")


def test_a_stale_watch_starts_in_the_past(
    control_plane: ControlPlane, proxy: FaultProxy, namespace: str, maps: str
) -> None:
    control_plane.api.create(config_map(namespace, "a"))
    proxy.add(Match(verbs={"watch"}), Stale(3600))
    watching = Watching(control_plane.api_as(control_plane.admin, server=proxy.url), maps)
    seen = [watching.next(), watching.next()]
    assert ("ADDED", "a") in seen


def test_a_client_that_leaves_ends_its_watch_at_the_apiserver(
    control_plane: ControlPlane, proxy: FaultProxy, maps: str
) -> None:
    def open_watches() -> float:
        pool = urllib3.PoolManager(ca_certs=str(control_plane.ca_file))
        headers = {"Authorization": f"Bearer {control_plane.admin.token}"}
        text = pool.request("GET", f"{control_plane.server}/metrics", headers=headers).data.decode()
        lines = [line for line in text.splitlines() if line.startswith("apiserver_longrunning_requests{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if 'resource="configmaps"' in line)

    before = open_watches()
    with _raw_watch(control_plane, proxy, maps):
        until(lambda: open_watches() == before + 1)
    until(lambda: open_watches() == before)


@contextmanager
def _raw_watch(control_plane: ControlPlane, proxy: FaultProxy, maps: str) -> Iterator[None]:
    pool = urllib3.PoolManager(ca_certs=str(control_plane.ca_file))
    headers = {"Authorization": f"Bearer {control_plane.admin.token}"}
    answer = pool.request("GET", f"{proxy.url}{maps}?watch=true", headers=headers, preload_content=False)
    try:
        yield
    finally:
        answer.close()
        pool.clear()
