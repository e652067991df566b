"""Engines that stand still are replaced: a real apiserver, a stand-in kubelet, metrics at the pods' addresses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.operator.objects import eventually, serving
from e2e.operator.waiting import settle, wait_for

_METRICS = """\
vllm:num_requests_running{{engine="0"}} 0.0
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="0",reason="deferred"}} 0.0
vllm:kv_cache_usage_perc{{engine="0"}} 0.0
"""


class Engine(ThreadingHTTPServer):
    """Serves the metrics of an engine whose requests wait, none of which runs, once it is ``stuck``."""

    daemon_threads = True
    stuck = False
    asked = 0

    def __init__(self, address: str) -> None:
        super().__init__((address, 8000), _Metrics)


class _Metrics(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        self.server.asked += 1
        body = _METRICS.format(waiting=2 if self.server.stuck else 0).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def engines(plane: ControlPlane, namespace: str, kubelet: FakeKubelet) -> Iterator[dict[str, Engine]]:
    """Serve at the addresses of all engine pods that are there; yield the servers by pod."""
    found = {}
    for name, (role, address, _) in pods(plane, namespace).items():
        if role != "router":
            found[name] = Engine(address)
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in found.values()]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        for server in found.values():
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


def pods(plane: ControlPlane, namespace: str) -> dict[str, tuple[str, str, bool]]:
    """Return role, address and readiness of all pods that are not about to go."""
    items = plane.api.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector="kvserving.dev/name")
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["labels"]["kvserving.dev/role"],
            pod["status"].get("podIP", ""),
            any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ())),
        )
        for pod in items
        if "deletionTimestamp" not in pod["metadata"]
    }


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_hung_engine_is_replaced_by_another_pod_and_the_others_stay(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, proxy: FaultProxy, role: str
) -> None:
    operator = start("--counters=0.5", env={"KVSERVING_TEST_HUNG": "2"})
    obj = serving(namespace)
    settle(plane, obj)
    before = pods(plane, namespace)
    with engines(plane, namespace, kubelet) as found:
        victim = min(name for name, (of, _, _) in before.items() if of == role)
        found[victim].stuck = True
        after = eventually(
            lambda: pods(plane, namespace),
            lambda now: victim not in now and len(now) == len(before) and all(ready for _, _, ready in now.values()),
            what=f"{victim} is replaced",
        )
        assert set(before) - set(after) == {victim}
        [event] = eventually(
            lambda: plane.api.items(f"/api/v1/namespaces/{namespace}/events", fieldSelector="reason=EngineReplaced"),
            lambda events: len(events) > 0,
            what="an event about it",
        )
        assert event["message"].startswith(
            f"EngineHung: pod {victim}: this {role} engine has requests waiting, none running"
        )
        assert [r.info.name for r in proxy.writes() if (r.info.verb, r.info.resource) == ("delete", "pods")] == [victim]
        assert operator.metric("kvserving_operator_engines_replaced_total", reason="EngineHung") == 1
    wait_for(plane, obj, "Ready")


def test_of_two_that_hang_one_is_replaced_and_the_other_waits_for_its_turn(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--counters=0.5", env={"KVSERVING_TEST_HUNG": "2"})
    settle(plane, serving(namespace))
    before = pods(plane, namespace)
    with engines(plane, namespace, kubelet) as found:
        stuck = {name for name, (of, _, _) in before.items() if of == "decode"}
        for name in stuck:
            found[name].stuck = True
        [left] = eventually(
            lambda: stuck & set(pods(plane, namespace)), lambda left: len(left) == 1, what="one of two is replaced"
        )
        eventually(
            lambda: pods(plane, namespace),
            lambda now: len(now) == len(before) and all(ready for _, _, ready in now.values()),
            what="all are ready again",
        )
        # The role's next restart is due after two minutes.
        looked = found[left].asked
        eventually(lambda: found[left].asked, lambda asked: asked > looked + 10, what="it is looked at again and again")
        assert left in pods(plane, namespace)
        assert operator.metric("kvserving_operator_engines_replaced_total", reason="EngineHung") == 1
