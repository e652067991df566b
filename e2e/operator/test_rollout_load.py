"""Rollouts, scaling and restarts under 200 streams: the real operator, Deployment controller and routers, mock engines.

Clients choose among the routers that are ready and behind the Service, as kube-proxy would. Real engines under the
same changes: the cluster lane.
"""

from __future__ import annotations

import os
import random
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.process_runtime import ProcessRuntime
from e2e.local.streams import CUT, WHOLE, Streams
from e2e.operator import mock_engine
from e2e.operator.objects import eventually, path_of, serving
from e2e.operator.running import Operator
from e2e.operator.test_rollouts import Witness, is_ready
from e2e.operator.waiting import wait_for, wait_planned

pytestmark = pytest.mark.timeout(600)

STREAMS = 200
LABEL = "kvserving.dev/"


class Routers:
    """The addresses behind the Service, kept up to date by a watch."""

    def __init__(self, plane: ControlPlane, namespace: str, over: threading.Event) -> None:
        self._plane = plane
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = f"{LABEL}role=router,{LABEL}traffic=on"
        self._ready: dict[str, str] = {}
        self.over = over
        listed = plane.api.get(self._path, labelSelector=self._selector)
        self._version = listed["metadata"]["resourceVersion"]
        for pod in listed["items"]:
            self._see(pod)

    def follow(self) -> None:
        """Watch until it is over."""
        while not self.over.is_set():
            for event in self._plane.api.watch(
                self._path, timeout=1, resourceVersion=self._version, labelSelector=self._selector
            ):
                self._version = event["object"]["metadata"]["resourceVersion"]
                self._see(event["object"], gone=event["type"] == "DELETED")

    def _see(self, pod: Json, *, gone: bool = False) -> None:
        if gone or not is_ready(pod):
            self._ready.pop(pod["metadata"]["uid"], None)
        else:
            self._ready[pod["metadata"]["uid"]] = pod["status"]["podIP"]

    def choose(self) -> str:
        """A URL at random. Raises ``LookupError`` where there is none."""
        return f"http://{random.choice(list(self._ready.values()))}:8000"


@dataclass
class Service:
    """An object whose pods run, under load."""

    plane: ControlPlane
    namespace: str
    operator: Operator
    load: Streams
    runtime: ProcessRuntime
    mixed: Path
    may_cut: bool = False

    def pods(self, role: str) -> list[str]:
        """Names of the pods of a role."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return [p["metadata"]["name"] for p in self.plane.api.items(path, labelSelector=f"{LABEL}role={role}")]

    def kill(self, role: str) -> str:
        """Kill the process of one pod of a role; return the pod's name. What it was streaming may be cut off."""
        self.may_cut = True
        name = self.pods(role)[0]
        os.kill(self.runtime.pid(self.namespace, name), signal.SIGKILL)
        return name

    def change(self, spec: Mapping[str, Any]) -> None:
        self.plane.api.merge(path_of(self.namespace), {"spec": spec})

    def settle(self) -> Json:
        return wait_planned(self.plane, self.namespace, timeout=240)

    def check(self) -> None:
        """No request was lost, and none met another revision. Call it after the load has ended."""
        print(f"{sum(self.load.outcomes.values())} requests: {dict(self.load.outcomes)}")
        assert set(self.load.outcomes) <= ({WHOLE, CUT} if self.may_cut else {WHOLE})
        assert self.load.outcomes[WHOLE] > STREAMS
        assert not self.mixed.exists() or self.mixed.read_text() == ""


@pytest.fixture
def wrapper(tmp_path: Path) -> str:
    """The mock as an interpreter."""
    file = tmp_path / "python3"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {mock_engine.__file__} "$@"\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


@pytest.fixture
def under_load(
    plane: ControlPlane, namespace: str, start: Callable[..., Any], wrapper: str, tmp_path: Path
) -> Iterator[Service]:
    """Two prefills and two decodes, ready, with all clients asking until the test has done its changes."""
    folder = tmp_path / "node"
    folder.mkdir()
    runtime = ProcessRuntime(plane, folder=folder, engine_python=wrapper)
    mixed = tmp_path / "mixed"
    quick = {"replicas": 2, "drainTimeout": "30s"}
    obj = serving(
        namespace,
        engine={"device": "cpu", "version": "0.32.0", "env": [{"name": mock_engine.MIXED, "value": str(mixed)}]},
        prefill=quick,
        decode=quick,
        transfer={"lease": "10s"},
        router={"requestTimeout": "2m"},
    )
    over = threading.Event()
    with (
        FakeKubelet(plane, namespace=namespace, network=runtime.network, runtime=runtime),
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            operator = start()
            plane.api.create(obj)
            wait_for(plane, obj, "Ready", timeout=120)
            routers = Routers(plane, namespace, over)
            watching = pool.submit(routers.follow)
            load = Streams(
                STREAMS,
                routers.choose,
                lambda number: {"model": "Qwen3-8B", "prompt": f"{number} says", "max_tokens": mock_engine.CHUNKS},
                chunks=mock_engine.CHUNKS,
                spread=mock_engine.CHUNKS * mock_engine.CHUNK_SECONDS,
            )
            service = Service(plane, namespace, operator, load, runtime, mixed)
            with load.flowing():
                eventually(lambda: load.outcomes[WHOLE], lambda count: count > STREAMS / 2, what="all clients ask")
                yield service
            over.set()
            watching.result()
            service.check()
        finally:
            over.set()
            sys.stderr.write(f"{runtime.tails(15)}\n")


@pytest.mark.parametrize(
    "changed", [{"engine": {"version": "0.31.0"}}, {"model": {"revision": "main-2"}}], ids=["vllm", "model"]
)
def test_another_revision_loses_no_request(
    under_load: Service, plane: ControlPlane, namespace: str, changed: dict[str, Any]
) -> None:
    first = plane.api.get(path_of(namespace))["status"]["revision"]
    with Witness(plane, namespace) as witness:
        under_load.change(changed)
        found = under_load.settle()
    assert found["status"]["revision"] != first
    assert witness.gaps == 0
    assert min(witness.least.values()) == 2
    assert max(witness.most.values()) == 3


def test_a_change_of_prefill_alone_loses_no_request(under_load: Service) -> None:
    under_load.change({"prefill": {"args": ["--max-num-batched-tokens=4096"]}})
    under_load.settle()


def test_each_role_scaled_up_and_down_loses_no_request(under_load: Service) -> None:
    for role in ("prefill", "decode"):
        for count in (1, 3, 1):
            under_load.change({role: {"replicas": count}})
            under_load.settle()


def test_an_operator_that_is_killed_in_a_rollout_loses_no_request(
    under_load: Service, start: Callable[..., Any], plane: ControlPlane, namespace: str
) -> None:
    with Witness(plane, namespace) as witness:
        under_load.change({"engine": {"version": "0.31.0"}})
        plane.api.wait(
            path_of(namespace), lambda o: "rollout" in (o or {}).get("status", {}), what="the rollout", timeout=60
        )
        under_load.operator.kill()
        start()
        under_load.settle()
    assert witness.gaps == 0
    assert min(witness.least.values()) == 2


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_killed_engine_costs_what_it_was_streaming_and_nothing_else(under_load: Service, role: str) -> None:
    name = under_load.kill(role)
    path = f"/api/v1/namespaces/{under_load.namespace}/pods/{name}"
    under_load.plane.api.wait(
        path,
        lambda pod: pod is not None and pod["status"]["containerStatuses"][0]["restartCount"] == 1 and is_ready(pod),
        what=f"{name} is back",
        timeout=60,
    )
    under_load.settle()
    assert under_load.load.outcomes[CUT] == 0 or role == "decode", "no stream runs through a prefill"
