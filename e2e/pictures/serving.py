"""A run for the dashboards: the real operator and apiserver, real engines and router, load, and three faults.

One prefill and one decode of ``prod/tiny`` run, with an L1 of the workers and a Valkey; ``prod/qwen`` asks for GPUs
that no node has, ``prod/idle`` is suspended. While clients ask, requests with forged transfer parameters come, the
Valkey stands still, and the decode engine is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import urllib3
import yaml
from e2e.controlplane import build
from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fixtures import CRDS
from e2e.controlplane.process_runtime import ProcessRuntime
from e2e.local.asking import Texts
from e2e.local.forged import FOREIGN_HOSTS, complete
from e2e.local.real_model import tiny_model
from e2e.local.streams import WHOLE, Streams
from e2e.local.valkey import SECRET, Valkey
from e2e.operator.objects import condition, path_of, serving
from e2e.operator.running import ROOT, Operator, operator_user
from e2e.pictures.commands import Printed, run
from e2e.pictures.prometheus import Discovery, Prometheus

from kvserving_operator.plan import labels

NAMESPACE, OWN_NAMESPACE = "prod", "kvserving-system"
NAME, SHORT, IDLE = "tiny", "qwen", "idle"
_EXAMPLE = ROOT / "examples" / "cluster-without-gpu.yaml"
_CLIENTS = 3
_PROMPT_TOKENS, _ANSWER_TOKENS = 700, 24
_POPULAR, _PROMPTS = 8, 30
"""Of two requests one repeats one of a few prompts; the others go round those that only the tiers can hold."""
_FORGED = 40
_UP_SECONDS, _AGAIN_SECONDS = 240, 120
_STEADY, _BETWEEN, _SILENT, _AFTER = 40.0, 15.0, 12.0, 30.0
_HTTP = urllib3.PoolManager(retries=False)


@dataclass(frozen=True)
class Times:
    """When the operator began, when the load did, and when all was over; seconds since the epoch."""

    began: float
    loaded: float
    ended: float


@dataclass(frozen=True)
class Run:
    """What is still up at the end of a run, for those who draw it."""

    prometheus: Prometheus
    times: Times
    tables: tuple[Printed, ...]


@contextmanager
def run_for_dashboards(folder: Path, python: str, programs: build.Programs) -> Iterator[Run]:
    """Yield the run once its load has ended; Prometheus answers until the block ends."""
    model = tiny_model(python)
    node = folder / "node"
    node.mkdir()
    store = Valkey(folder)
    try:
        with ControlPlane(crds=CRDS, programs=programs) as plane, Prometheus(folder / "prometheus") as prometheus:
            for name in (NAMESPACE, OWN_NAMESPACE):
                plane.api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            operator = Operator(
                kubeconfig=plane.kubeconfig(operator_user(plane, OWN_NAMESPACE)),
                log=folder / "operator.log",
                own_namespace=OWN_NAMESPACE,
                # Two busy cores may keep a renewal waiting for longer than the default allows.
                arguments=("--lease-duration=90", "--renew-deadline=60"),
                env={"KUBECONFIG": ""},
            )
            # The claim is called as the folder that holds the models.
            runtime = ProcessRuntime(plane, folder=node, engine_python=python, claims=model.parents[1])
            with FakeKubelet(plane, network=runtime.network, runtime=runtime):
                try:
                    began = time.time()
                    operator.start()
                    with Discovery(plane, prometheus, f"127.0.0.1:{operator.port}"):
                        service = _Service(plane, runtime, store, Texts(model))
                        service.create()
                        loaded, tables = service.load()
                    yield Run(prometheus, Times(began, loaded, time.time()), tables)
                except BaseException:
                    print(f"{operator.tail()}\n{runtime.tails()}", file=sys.stderr)
                    raise
                finally:
                    operator.end()
    finally:
        store.close()


@dataclass
class _Service:
    plane: ControlPlane
    runtime: ProcessRuntime
    store: Valkey
    texts: Texts

    def create(self) -> None:
        """Create the objects and return when the one with engines is ready."""
        secret = {"stringData": {"password": self.store.password}, "metadata": {"name": SECRET, "namespace": NAMESPACE}}
        self.plane.api.create({"apiVersion": "v1", "kind": "Secret", **secret})
        for obj in objects(self.store):
            self.plane.api.create(obj)
        self._wait("Ready", "True", _UP_SECONDS)

    def load(self) -> tuple[float, tuple[Printed, ...]]:
        """Let clients ask while the faults come and go; return when that began, and tables of the time before them."""
        router = f"http://{self._pod('router')['status']['podIP']}:8000"
        load = Streams(_CLIENTS, lambda: router, self._question, chunks=1, rest=0.1)
        loaded = time.time()
        with load.flowing():
            time.sleep(_STEADY)
            kubeconfig = self.plane.kubeconfig()
            tables = (
                run("kubectl kvserving", "status", "-A", kubeconfig=kubeconfig),
                run("kubectl kvserving", "status", NAME, "-n", NAMESPACE, kubeconfig=kubeconfig),
            )
            self._forge()
            time.sleep(_BETWEEN)
            self.store.hang()
            time.sleep(_SILENT)
            self.store.resume()
            time.sleep(_BETWEEN)
            os.kill(self.runtime.pid(NAMESPACE, self._pod("decode")["metadata"]["name"]), signal.SIGKILL)
            self._wait("DecodeReady", "False", 30)
            self._wait("Ready", "True", _AGAIN_SECONDS)
            time.sleep(_AFTER)
        if load.outcomes[WHOLE] < 10 * _CLIENTS:
            raise RuntimeError(f"hardly a request was answered: {dict(load.outcomes)}")
        print(f"{load.outcomes.total()} requests: {dict(load.outcomes)}", file=sys.stderr)
        return loaded, tables

    def _question(self, number: int) -> Json:
        turn, popular = divmod(number // _CLIENTS, 2)
        seed = turn % _POPULAR if popular else _POPULAR + turn % _PROMPTS
        prompt = self.texts.of(_PROMPT_TOKENS, seed=seed)
        return {"model": NAME, "prompt": prompt, "max_tokens": _ANSWER_TOKENS, "ignore_eos": True}

    def _forge(self) -> None:
        """Ask the decode engine, past the router, to load KV from a host of the client's choice."""
        decode = f"http://{self._pod('decode')['status']['podIP']}:8000/v1/completions"
        for _ in range(_FORGED):
            params = complete(FOREIGN_HOSTS[0], 5600)
            body = {"model": NAME, "prompt": "a", "max_tokens": 1, "kv_transfer_params": params}
            _HTTP.request("POST", decode, json=body, timeout=30)

    def _pod(self, role: str) -> Json:
        selector = f"{labels.NAME}={NAME},{labels.ROLE}={role}"
        [found] = self.plane.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=selector)
        return found

    def _wait(self, kind: str, status: str, seconds: float) -> None:
        def holds(obj: Json | None) -> bool:
            return condition(obj, kind).get("status") == status

        self.plane.api.wait(path_of(NAMESPACE, NAME), holds, what=f"{kind}={status}", timeout=seconds)


def objects(store: Valkey) -> list[Json]:
    """Return the objects of the run."""
    tiny: Json = yaml.safe_load(_EXAMPLE.read_text())
    tiny["metadata"] = {"name": NAME, "namespace": NAMESPACE}
    spec = tiny["spec"]
    # So small that prompts leave the engines' own cache, and L1, within the run.
    spec["engine"]["args"] = [*spec["engine"]["args"], "--num-gpu-blocks-override=64"]
    spec["cache"] = {"l1": {"size": "64Mi", "owner": "worker"}, "l2": store.cache()}
    one = {"replicas": 1}
    short = serving(NAMESPACE, SHORT, prefill=one, decode=one, router=one)
    return [tiny, short, serving(NAMESPACE, IDLE, prefill=one, decode=one, suspend=True)]
