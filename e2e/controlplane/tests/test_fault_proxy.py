"""The fault proxy before a real apiserver: what passes unchanged, what is recorded and what can be waited for."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kubernetes.aio.client
import kubernetes.aio.config
import pytest
import urllib3
from e2e.controlplane.api import Api, ApiError
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.faults import Match
from e2e.controlplane.request_info import parse
from e2e.controlplane.tests.objects import config_map
from kubernetes.aio.dynamic import DynamicClient


def test_answers_are_those_of_the_apiserver_byte_for_byte(
    control_plane: ControlPlane, proxy: FaultProxy, namespace: str
) -> None:
    control_plane.api.create(config_map(namespace, "large", x="ü" * 200_000))
    # One object, which stays as it is: a list also tells of what controllers write meanwhile.
    path = f"/api/v1/namespaces/{namespace}/configmaps/large"
    for accept in ("identity", "gzip"):
        headers = {"Authorization": f"Bearer {control_plane.admin.token}", "Accept-Encoding": accept}
        answers = []
        for server in (control_plane.server, proxy.url):
            pool = urllib3.PoolManager(ca_certs=str(control_plane.ca_file))
            answer = pool.request("GET", server + path, headers=headers, decode_content=False)
            encoding = answer.headers.get("Content-Encoding")
            # Where the apiserver flushes its compressor differs from answer to answer, so what it packed is compared.
            body = gzip.decompress(answer.data) if encoding == "gzip" else answer.data
            answers.append((answer.status, encoding, body))
        assert answers[0] == answers[1]
        assert answers[0][1] == (accept if accept == "gzip" else None)
    assert len(proxy.records(Match(verbs={"get"}))) == 2


def test_errors_of_the_apiserver_pass_unchanged(control_plane: ControlPlane, api: Api, maps: str) -> None:
    with pytest.raises(ApiError) as through:
        api.get(f"{maps}/none")
    with pytest.raises(ApiError) as direct:
        control_plane.api.get(f"{maps}/none")
    assert (through.value.status, through.value.body) == (direct.value.status, direct.value.body)


def test_rights_are_those_of_the_client(control_plane: ControlPlane, proxy: FaultProxy, namespace: str) -> None:
    who = control_plane.service_account(namespace, "nobody")
    with pytest.raises(ApiError) as refused:
        control_plane.api_as(who, server=proxy.url).items(f"/api/v1/namespaces/{namespace}/pods")
    assert refused.value.status == 403
    assert [r.status for r in proxy.records(Match(resource="pods"))] == [403]


def test_plain_http_works_as_well(control_plane: ControlPlane, namespace: str) -> None:
    with FaultProxy(control_plane, tls=False) as proxy:
        assert proxy.url.startswith("http://127.0.0.1:")
        api = control_plane.api_as(control_plane.admin, server=proxy.url)
        api.create(config_map(namespace))
        assert proxy.counts()["create", "configmaps"] == 1


def test_the_asynchronous_dynamic_client_applies_and_watches_through_it(
    control_plane: ControlPlane, proxy: FaultProxy, namespace: str
) -> None:
    config = str(control_plane.kubeconfig(server=proxy.url))

    async def names() -> list[str]:
        configuration = kubernetes.aio.client.Configuration()
        load: Any = kubernetes.aio.config.load_kube_config
        await load(config, client_configuration=configuration)
        async with kubernetes.aio.client.ApiClient(configuration) as client:
            make: Any = DynamicClient
            dynamic = await make(client)
            resource = await dynamic.resources.get(api_version="v1", kind="ConfigMap")
            await dynamic.server_side_apply(
                resource, config_map(namespace, "applied"), namespace=namespace, field_manager="test"
            )
            seen = []
            async for event in resource.watch(namespace=namespace, timeout=5):
                seen.append(event["object"].metadata.name)
                if "applied" in seen:
                    break
            return seen

    assert "applied" in asyncio.run(names())
    (write,) = proxy.writes()
    assert (write.info.verb, write.info.full_resource, write.info.name) == ("patch", "configmaps", "applied")
    assert write.body["metadata"]["name"] == "applied"


def test_every_request_is_counted_by_verb_and_resource(api: Api, proxy: FaultProxy, namespace: str, maps: str) -> None:
    api.create(config_map(namespace))
    proxy.reset()
    api.create(config_map(namespace, "b"))
    api.merge(f"{maps}/b", {"data": {"x": "1"}})
    api.apply(config_map(namespace, "b", x="2"))
    api.get(f"{maps}/b")
    api.items(maps)
    list(api.watch(maps, timeout=1))
    api.delete(f"{maps}/b")
    api.create(config_map(namespace, "dry"), dryRun="All")
    assert proxy.counts() == {
        ("create", "configmaps"): 2,
        ("patch", "configmaps"): 2,
        ("get", "configmaps"): 1,
        ("list", "configmaps"): 1,
        ("watch", "configmaps"): 1,
        ("delete", "configmaps"): 1,
    }
    assert [w.info.verb for w in proxy.writes()] == ["create", "patch", "patch", "delete"]
    assert [w.body for w in proxy.writes()][1] == {"data": {"x": "1"}}
    assert all("Bearer" not in repr(r) for r in proxy.records())


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/namespaces/n", {}, ("get", "namespaces", "n", "n")),
        ("PUT", "/api/v1/namespaces/n/finalize", {}, ("update", "namespaces/finalize", "n", "n")),
        ("GET", "/api/v1/pods", {"watch": "1"}, ("watch", "pods", "", "")),
        ("POST", "/api/v1/namespaces/n/pods/p/binding", {}, ("create", "pods/binding", "n", "p")),
        ("PATCH", "/apis/apps/v1/namespaces/n/deployments/d/status", {}, ("patch", "deployments/status", "n", "d")),
        ("DELETE", "/apis/apps/v1/namespaces/n/deployments", {}, ("deletecollection", "deployments", "n", "")),
        ("GET", "/apis/apps/v1", {}, ("get", "", "", "")),
        ("GET", "/readyz", {}, ("get", "", "", "")),
    ],
)
def test_requests_are_read_as_the_apiserver_reads_them(
    method: str, path: str, query: dict[str, str], expected: tuple[str, str, str, str]
) -> None:
    info = parse(method, path, query)
    assert (info.verb, info.full_resource, info.namespace, info.name) == expected


def test_a_refused_apiserver_is_seen_as_without_a_proxy(own_control_plane: ControlPlane) -> None:
    with FaultProxy(own_control_plane) as proxy:
        api = own_control_plane.api_as(own_control_plane.admin, server=proxy.url)
        api.get("/api/v1/nodes")
        own_control_plane.apiserver.kill()
        with pytest.raises(urllib3.exceptions.ProtocolError):
            api.get("/api/v1/nodes")
        own_control_plane.apiserver.start()
        api.get("/api/v1/nodes")


def test_waiting_tells_what_did_not_come(api: Api, proxy: FaultProxy, namespace: str, maps: str) -> None:
    timer = threading.Timer(0.2, lambda: api.create(config_map(namespace)))
    timer.start()
    found = proxy.wait(lambda records: any(r.info.verb == "create" for r in records), what="a create")
    timer.join()
    assert found[-1].info.name == "a"
    with pytest.raises(TimeoutError, match="an update; requests so far"):
        proxy.wait(lambda records: any(r.info.verb == "update" for r in records), what="an update", timeout=0.2)


def test_quiet_means_no_writes(api: Api, proxy: FaultProxy, namespace: str, maps: str) -> None:
    with _background(lambda n: api.create(config_map(namespace, f"m{n}")), every=0.1, times=8):
        proxy.wait_quiet(2)
    assert len(proxy.writes()) == 8
    with (
        _background(lambda n: api.merge(f"{maps}/m0", {"data": {"x": str(n)}}), every=0.05, times=40),
        pytest.raises(TimeoutError, match=r"writes did not stop .*patch /api/v1"),
    ):
        proxy.wait_quiet(1, timeout=1.2)


@contextmanager
def _background(act: Callable[[int], object], *, every: float, times: int) -> Iterator[None]:
    """Call ``act`` with 0, 1, … ``every`` seconds in a thread while the block runs, at most ``times`` times."""
    leave = threading.Event()

    def run() -> None:
        for number in range(times):
            act(number)
            if leave.wait(every):
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        leave.set()
        thread.join()
