"""Rollouts with the real apiserver and Deployment controller: what clients could reach at every change of a pod."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.pod_script import never_ready, ready
from e2e.operator.objects import condition, differences, eventually, path_of, serving
from e2e.operator.waiting import at_generation, settle, wait_for, wait_planned

_MARK = "kvserving.dev/"
OTHER = {"engine": {"version": "0.32.0"}}


class Witness:
    """Follows the pods of a namespace by one watch, so that it sees every state in its order."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._pods: dict[str, Json] = {}
        self.least = {"prefill": 99, "decode": 99}
        self.most = {"prefill": 0, "decode": 0}
        self.reached: set[str] = set()
        self.gaps = 0

    def __enter__(self) -> Witness:
        listed = self._plane.api.get(self._path)
        self._pods = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        self._version = listed["metadata"]["resourceVersion"]
        self._stopped = threading.Event()
        self._look()
        self._pool = ThreadPoolExecutor(1)
        self._following: Future[None] = self._pool.submit(self._follow)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._following.result()
        self._pool.shutdown()

    def _follow(self) -> None:
        while not self._stopped.is_set():
            # Short watches, so that it ends soon; each goes on where the last one ended.
            for event in self._plane.api.watch(self._path, timeout=1, resourceVersion=self._version):
                body = event["object"]
                self._version = body["metadata"]["resourceVersion"]
                if event["type"] == "DELETED":
                    self._pods.pop(body["metadata"]["uid"], None)
                else:
                    self._pods[body["metadata"]["uid"]] = body
                self._look()

    def _look(self) -> None:
        serving = [pod for pod in self._pods.values() if is_ready(pod)]
        reached = {_mark(pod, "revision") for pod in serving if _mark(pod, "traffic") == "on"}
        self.reached |= reached
        self.gaps += not reached
        for role in self.least:
            usable = [pod for pod in serving if _mark(pod, "role") == role and _mark(pod, "revision") in reached]
            self.least[role] = min(self.least[role], len(usable))
            self.most[role] = max(self.most[role], sum(_mark(pod, "role") == role for pod in self._pods.values()))


def _mark(pod: Json, name: str) -> str:
    return str(pod["metadata"]["labels"].get(_MARK + name, ""))


def is_ready(pod: Json) -> bool:
    """Whether a pod takes requests: ready, and not on its way out."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    said = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return said and "deletionTimestamp" not in pod["metadata"]


@pytest.fixture
def witness(plane: ControlPlane, namespace: str) -> Witness:
    """Not begun yet."""
    return Witness(plane, namespace)


def pair(namespace: str, count: int = 2, **spec: Any) -> Json:
    return serving(namespace, prefill={"replicas": count}, decode={"replicas": count}, **spec)


def change(plane: ControlPlane, namespace: str, spec: Mapping[str, Any]) -> None:
    plane.api.merge(path_of(namespace), {"spec": spec})


def revision_of(found: Json) -> str:
    return str(found["status"]["revision"])


def test_a_new_revision_takes_over_within_the_budget(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, witness: Witness
) -> None:
    kubelet.script(lambda _: ready(0.3, stop_after=0.5))
    start()
    first = revision_of(settle(plane, pair(namespace, 3)))
    with witness:
        change(plane, namespace, OTHER)
        found = wait_planned(plane, namespace, timeout=120)
    second = revision_of(found)
    assert witness.reached == {first, second}
    assert witness.gaps == 0
    assert witness.least == {"prefill": 3, "decode": 3}
    assert witness.most == {"prefill": 4, "decode": 4}


def test_without_a_spare_device_one_pair_is_missing_at_a_time(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, witness: Witness
) -> None:
    start()
    settle(plane, pair(namespace, 3, rollout={"maxSurge": 0, "maxUnavailable": 1}))
    with witness:
        change(plane, namespace, OTHER)
        wait_planned(plane, namespace, timeout=120)
    assert witness.gaps == 0
    assert min(witness.least.values()) >= 2
    assert max(witness.most.values()) == 3


def test_recreate_never_runs_two_revisions(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, witness: Witness
) -> None:
    kubelet.script(lambda _: ready(0.1, stop_after=1.0))
    start()
    settle(plane, pair(namespace, 2, rollout={"strategy": "Recreate"}))
    with witness:
        change(plane, namespace, OTHER)
        wait_planned(plane, namespace, timeout=120)
    assert witness.most == {"prefill": 2, "decode": 2}


def test_a_change_of_one_role_leaves_the_other_one_alone(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, witness: Witness
) -> None:
    start()
    found = settle(plane, pair(namespace, 2))
    pods = f"/api/v1/namespaces/{namespace}/pods"
    decodes = {p["metadata"]["uid"] for p in plane.api.items(pods, labelSelector=f"{_MARK}role=decode")}
    prefills = {p["metadata"]["uid"] for p in plane.api.items(pods, labelSelector=f"{_MARK}role=prefill")}
    with witness:
        change(plane, namespace, {"prefill": {"args": ["--max-num-batched-tokens=4096"]}})
        after = wait_planned(plane, namespace, timeout=60)
    assert revision_of(after) == revision_of(found)
    assert {p["metadata"]["uid"] for p in plane.api.items(pods, labelSelector=f"{_MARK}role=decode")} == decodes
    assert not {p["metadata"]["uid"] for p in plane.api.items(pods, labelSelector=f"{_MARK}role=prefill")} & prefills
    assert min(witness.least.values()) == 2


def test_a_revision_that_cannot_verify_is_given_up_and_the_former_spec_restores(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, verdict: Path, witness: Witness
) -> None:
    start()
    first = revision_of(settle(plane, pair(namespace, 2, engine={"version": "0.33.0"})))
    verdict.write_text("recomputed")
    with witness:
        change(plane, namespace, OTHER)
        found = plane.api.wait(
            path_of(namespace),
            lambda o: condition(o, "Ready").get("reason") == "RolloutFailed",
            what="RolloutFailed",
            timeout=90,
        )
        assert found is not None
        assert "kvserving rollout undo" in condition(found, "Stalled")["message"]
        assert condition(found, "Available")["status"] == "True"
        assert (found["status"]["rollout"]["phase"], revision_of(found)) == ("Stopped", first)
        verdict.write_text("ok")
        change(plane, namespace, {"engine": {"version": "0.33.0"}})
        wait_planned(plane, namespace, timeout=60)
        # Children are as planned one look before the status says so: the deletion comes first.
        found = plane.api.wait(
            path_of(namespace), lambda o: "rollout" not in (o or {})["status"], what="the rollout over", timeout=30
        )
    assert found is not None
    assert revision_of(found) == first
    assert witness.reached == {first}
    assert witness.gaps == 0
    assert min(witness.least.values()) == 2


def test_engines_that_never_start_end_the_rollout_at_its_deadline(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    quick = {"replicas": 1, "startupTimeout": "2s", "drainTimeout": "1s"}
    obj = serving(namespace, prefill=quick, decode=quick, rollout={"progressDeadline": "4s"})
    first = revision_of(settle(plane, obj))
    kubelet.script(lambda pod: never_ready() if _mark(pod, "revision") != first else None)
    change(plane, namespace, OTHER)
    found = plane.api.wait(
        path_of(namespace),
        lambda o: condition(o, "Stalled").get("reason") == "RolloutFailed",
        what="Stalled",
        timeout=60,
    )
    assert found is not None
    assert "no progress for 4 s" in condition(found, "Stalled")["message"]
    assert condition(found, "Available")["status"] == "True"


@pytest.mark.parametrize("seconds", [1.5])
def test_an_operator_that_is_killed_in_the_middle_is_followed_by_one_that_goes_on(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, witness: Witness, seconds: float
) -> None:
    kubelet.script(lambda _: ready(0.4, stop_after=0.3))
    operator = start("--no-elect")
    first = revision_of(settle(plane, pair(namespace, 2)))
    with witness:
        change(plane, namespace, OTHER)
        threading.Event().wait(seconds)
        operator.kill()
        start("--no-elect")
        found = wait_planned(plane, namespace, timeout=120)
    assert revision_of(found) != first
    assert witness.gaps == 0
    assert min(witness.least.values()) == 2
    assert max(witness.most.values()) <= 3


def test_a_paused_rollout_holds_until_it_is_resumed(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    first = revision_of(settle(plane, pair(namespace, 1)))
    change(plane, namespace, {**OTHER, "rollout": {"paused": True}})
    found = at_generation(plane, namespace, 2)
    found = wait_for(plane, found, "Available")
    eventually(
        lambda: (plane.api.get(path_of(namespace))["status"].get("rollout") or {}).get("phase"),
        lambda phase: phase == "Paused",
        what="Paused",
    )
    assert revision_of(plane.api.get(path_of(namespace))) == first
    change(plane, namespace, {"rollout": {"paused": False}})
    assert revision_of(wait_planned(plane, namespace, timeout=60)) != first
    assert differences(plane, namespace) == []


def test_numbers_that_come_back_with_a_spec_are_no_edit_of_someone_else(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace, prefill={"replicas": 3}, decode={"replicas": 3})
    found = settle(plane, obj)
    version, first = found["status"]["engine"]["version"], found["status"]["revision"][:8]
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/qwen-decode-{first}"
    plane.api.merge(path_of(namespace), {"spec": {"engine": {"version": "0.32.0"}}})
    eventually(
        lambda: plane.api.get(deployment)["spec"]["replicas"],
        lambda number: number < 3,
        what="the former set gets smaller",
    )
    plane.api.merge(path_of(namespace), {"spec": {"engine": {"version": version}}})
    wait_for(plane, obj, "Ready", timeout=120)
    assert plane.api.get(deployment)["spec"]["replicas"] == 3
    assert plane.api.items(f"/api/v1/namespaces/{namespace}/events", fieldSelector="reason=EditPutBack") == []
