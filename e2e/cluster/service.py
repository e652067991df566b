"""One KVServing in the cluster, as its users and its administrators see it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import urllib3
from e2e.cluster import objects
from e2e.cluster.lane import Lane
from e2e.controlplane.api import Json
from e2e.local.asking import Reply, Texts, ask
from e2e.local.tiers import BLOCK, STORED_SECONDS, Reading, read
from e2e.operator.objects import condition, eventually, path_of

NAME = "tiny"
ROLES = ("prefill", "decode")
UP_SECONDS = 600
GONE_SECONDS = 120
CACHE = {"l1": {"size": "256Mi"}, "l2": {"size": "256Mi"}}
"""Both tiers, of a size that this machine has room for."""
PROMPT = 1200
ANSWER = 24
CHUNKS = PROMPT // BLOCK
_HTTP = urllib3.PoolManager(retries=False)
_POLL = 0.2


@dataclass(frozen=True)
class Served:
    """An object in a namespace of its own, with the claim that holds its model."""

    lane: Lane
    namespace: str
    python: Path
    texts: Texts

    def apply(self, **spec: Any) -> None:
        """Apply the example by kubectl; ``spec`` replaces whole sections."""
        obj = objects.example(self.python, self.namespace, **spec)
        self.lane.kubectl("apply", "-f", "-", stdin=json.dumps(obj))

    def ensure(self) -> None:
        """Return with the object there: it is applied, with both tiers, and waited for where it is not."""
        if self.lane.plane.api.find(path_of(self.namespace, NAME)) is None:
            self.apply(cache=CACHE)
            self.wait("Ready")

    def merge(self, spec: Json) -> None:
        """Change fields of the spec."""
        self.lane.plane.api.merge(path_of(self.namespace, NAME), {"spec": spec})

    def wait(self, kind: str, status: str = "True", reason: str | None = None, *, timeout: float = UP_SECONDS) -> Json:
        """Return the object once a condition has a status, at the object's generation, and a reason where named."""

        def holds(obj: Json | None) -> bool:
            found = condition(obj, kind)
            current = obj is not None and found.get("observedGeneration") == obj["metadata"]["generation"]
            return current and found.get("status") == status and reason in (None, found.get("reason"))

        path = path_of(self.namespace, NAME)
        return self.lane.plane.api.wait(path, holds, what=f"{kind}={status} {reason or ''}", timeout=timeout) or {}

    def pods(self, role: str) -> list[Json]:
        """Return the pods of a role that are not being deleted, the oldest first."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        found = self.lane.plane.api.items(path, labelSelector=f"kvserving.dev/role={role}")
        here = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(here, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def pod(self, role: str) -> Json:
        """Return the one pod of a role."""
        [found] = self.pods(role)
        return found

    def identities(self) -> dict[str, tuple[str, int]]:
        """Return uid and restarts of every pod of the object, by name."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return {
            pod["metadata"]["name"]: (
                pod["metadata"]["uid"],
                sum(status["restartCount"] for status in pod["status"].get("containerStatuses") or ()),
            )
            for pod in self.lane.plane.api.items(path, labelSelector="kvserving.dev/name")
        }

    def settled(self) -> None:
        """Return when the object is Ready and has the engines that its spec asks for, with none on its way out."""
        spec = self.wait("Ready")["spec"]
        asked = {role: spec[role].get("replicas", 1) for role in ROLES}
        eventually(
            lambda: {role: len(self.pods(role)) for role in ROLES}, lambda found: found == asked,
            what=f"{asked} pods", timeout=GONE_SECONDS,
        )  # fmt: skip
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        eventually(
            lambda: [
                pod["metadata"]["name"]
                for pod in self.lane.plane.api.items(path, labelSelector="kvserving.dev/name")
                if "deletionTimestamp" in pod["metadata"]
            ],
            lambda leaving: not leaving, what="no pod is on its way out", timeout=GONE_SECONDS,
        )  # fmt: skip

    def delete_pod(self, pod: Json, grace: int | None = None) -> None:
        """Delete a pod, by the grace that it asks for, and return when it is gone."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
        uid = pod["metadata"]["uid"]
        self.lane.plane.api.delete(path, **({} if grace is None else {"gracePeriodSeconds": grace}))
        self.lane.plane.api.wait(
            path,
            lambda found: found is None or found["metadata"]["uid"] != uid,
            what=f"{path} is gone",
            timeout=GONE_SECONDS,
        )

    def log(self, pod: Json) -> str:
        """Return what the engine of a pod has printed."""
        return self.lane.kubectl("logs", "-n", self.namespace, pod["metadata"]["name"], "-c", "engine")

    @property
    def url(self) -> str:
        """Address of the Service, which kube-proxy serves on the node, too."""
        spec = self.lane.plane.api.get(f"/api/v1/namespaces/{self.namespace}/services/{NAME}")["spec"]
        return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"

    def engine_url(self, role: str) -> str:
        """Address of the one engine of a role."""
        return _engine_url(self.pod(role))

    def ask(self, seed: int, url: str | None = None, salt: str = "", **more: Any) -> Reply:
        """Send the prompt of a seed to the Service, or to another address; prompts of two salts share no cache."""
        body = {
            "model": "tiny",
            "prompt": self.texts.of(PROMPT, seed),
            "max_tokens": ANSWER,
            "temperature": 0,
            "return_token_ids": True,
            "cache_salt": salt or "none",
            **more,
        }

        async def main() -> Reply:
            async with aiohttp.ClientSession() as session:
                return await ask(session, url or self.url, "/v1/completions", body)

        return asyncio.run(main())

    def prefilled(self, seed: int, **more: Any) -> Json:
        """Let prefill alone compute a prompt, and return what it tells a decode."""
        body = {"model": "tiny", "prompt": self.texts.of(PROMPT, seed), "max_tokens": 1, **more}
        answer = _HTTP.request("POST", f"{self.engine_url('prefill')}/v1/completions", json=body, timeout=60)
        assert answer.status == 200, answer.data
        found: Json = answer.json()["kv_transfer_params"]
        return found

    def gone(self, kept: set[tuple[str, str]], timeout: float = 120) -> None:
        """Return when the namespace holds what is named and nothing else."""
        deadline = time.monotonic() + timeout
        while (found := everything(self.lane, self.namespace)) != kept:
            assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {found ^ kept} of {found}"
            time.sleep(_POLL)

    def read(self, role: str) -> Reading:
        """Read the counters of the one engine of a role."""
        return read(self.engine_url(role))

    @contextmanager
    def storing(self, role: str, chunks: int) -> Iterator[None]:
        """Wait, after the block, until an engine has put so many chunks into the store, or found them there."""
        before = self.read(role)
        yield
        deadline = time.monotonic() + STORED_SECONDS
        while (stored := self.read(role).since(before).stored) < chunks:
            assert time.monotonic() < deadline, f"{stored} of {chunks} chunks are stored"
            # Counters reach the page with the engine's steps.
            self.ask(0, self.engine_url(role), prompt="a", max_tokens=1)

    @contextmanager
    def traffic(self) -> Iterator[list[int]]:
        """Ask one question after the other; the list fills with statuses, 0 for a question without an answer."""
        statuses: list[int] = []
        over = threading.Event()
        url = self.url

        def question() -> None:
            number = 0
            while not over.wait(_POLL):
                number += 1
                body = {"model": "tiny", "prompt": self.texts.of(200, 10_000 + number), "max_tokens": 4}
                try:
                    statuses.append(_HTTP.request("POST", f"{url}/v1/completions", json=body, timeout=60).status)
                except urllib3.exceptions.HTTPError:
                    statuses.append(0)

        thread = threading.Thread(target=question)
        thread.start()
        try:
            yield statuses
        finally:
            over.set()
            thread.join()


def answered(statuses: list[int], count: int, timeout: float = 60) -> None:
    """Return when so many more questions of ``traffic`` have their answer."""
    wanted = len(statuses) + count
    deadline = time.monotonic() + timeout
    while len(statuses) < wanted:
        assert time.monotonic() < deadline, f"{len(statuses)} of {wanted} questions are answered: {statuses}"
        time.sleep(_POLL)


def everything(lane: Lane, namespace: str) -> set[tuple[str, str]]:
    """Return kind and name of every object in a namespace, events and what mirrors other objects left out."""
    found: set[tuple[str, str]] = set()
    api = lane.plane.api
    bases = ["/api/v1"]
    bases += [f"/apis/{group['preferredVersion']['groupVersion']}" for group in api.get("/apis")["groups"]]
    for base in bases:
        for resource in api.get(base)["resources"]:
            listed = resource["namespaced"] and "list" in resource["verbs"] and "/" not in resource["name"]
            if listed and resource["kind"] not in ("Event", "PodMetrics"):
                items = api.items(f"{base}/namespaces/{namespace}/{resource['name']}")
                found |= {(resource["kind"], item["metadata"]["name"]) for item in items}
    return found


def _engine_url(pod: Json) -> str:
    container = next(c for c in pod["spec"]["containers"] if c["name"] == "engine")
    port = next(p["containerPort"] for p in container["ports"] if p["name"] == "http")
    return f"http://{pod['status']['podIP']}:{port}"
