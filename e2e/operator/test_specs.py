"""Specs on a real apiserver: many, wrong, too big for the quota, and new revisions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.pod_script import image_pull_error, never_ready
from e2e.operator.objects import children, condition, differences, eventually, expected, path_of, planned, serving
from e2e.operator.waiting import at_generation, settle, wait_children, wait_for


def deployments(plane: ControlPlane, namespace: str) -> dict[str, Json]:
    return {name: child for (kind, name), child in children(plane, namespace).items() if kind == "Deployment"}


def test_two_hundred_flips_end_at_the_last_spec(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace)
    settle(plane, obj)
    proxy.reset()
    for flip in range(200):
        plane.api.merge(path_of(namespace), {"spec": {"decode": {"replicas": 1 + flip % 4}}})
    plane.api.merge(path_of(namespace), {"spec": {"decode": {"replicas": 3}}})
    plane.api.wait(
        path_of(namespace),
        lambda o: (
            o is not None
            and o["status"]["roles"]["decode"]["summary"] == "3/3"
            and condition(o, "Ready")["status"] == "True"
        ),
        what="3 ready decodes",
        timeout=40,
    )
    patches = [r for r in proxy.writes() if r.info.resource == "deployments"]
    assert len(patches) < 200, "flips are not coalesced"
    found = plane.api.get(path_of(namespace))
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]


def test_any_character_of_a_name_reaches_children_and_status(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    """Emoji are two escapes in JSON, which the apiserver's YAML reader refuses."""
    name = "llama 🦙 \U0009fb9e ¼è"
    start("--no-elect")
    found = settle(plane, serving(namespace, model={"uri": "hf://Qwen/Qwen3-8B", "name": name}))
    assert found["status"]["model"] == name
    assert differences(plane, namespace) == []


def test_an_invalid_spec_is_told_and_harms_nothing_that_runs(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--resync=0.5")
    obj = serving(namespace)
    settle(plane, obj)
    proxy.wait_quiet(1)
    before = {name: child["metadata"]["resourceVersion"] for name, child in children(plane, namespace).items()}
    # The apiserver accepts it; only the plan knows that this engine is too old.
    plane.api.merge(path_of(namespace), {"spec": {"engine": {"version": "0.19.0"}}})
    found = at_generation(plane, namespace, 2)
    valid = condition(found, "ConfigValid")
    assert (valid["status"], valid["reason"]) == ("False", "InvalidSpec")
    assert "spec.engine.version" in valid["message"]
    assert condition(found, "Ready")["reason"] == "InvalidSpec"
    assert condition(found, "Stalled")["status"] == "True"
    assert condition(found, "Available")["status"] == "True"
    assert [error["path"] for error in found["status"]["errors"]] == ["spec.engine.version"]
    assert found["status"]["roles"]["decode"]["summary"] == "2/2"
    proxy.wait_quiet(1)
    since, done = time.monotonic(), operator.metric("kvserving_operator_resyncs_total")
    eventually(lambda: operator.metric("kvserving_operator_resyncs_total"), lambda n: n >= done + 3, what="resyncs")
    assert proxy.writes(since=since) == []
    assert {name: c["metadata"]["resourceVersion"] for name, c in children(plane, namespace).items()} == before
    plane.api.merge(path_of(namespace), {"spec": {"engine": None}})
    found = wait_for(plane, obj, "Ready")
    assert "errors" not in found["status"]


def test_a_quota_that_refuses_pods_is_told_and_recovers(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    plane.quota(namespace, {"pods": "2"})
    start()
    obj = serving(namespace)
    plane.api.create(obj)
    found = plane.api.wait(
        path_of(namespace),
        lambda o: condition(o, "Degraded").get("reason") == "QuotaExceeded",
        what="QuotaExceeded",
        timeout=30,
    )
    told = condition(found, "Degraded")["message"]
    assert "exceeded quota: tests" in told
    assert "limited: pods=2" in told
    plane.quota(namespace, {"pods": "50"})
    wait_for(plane, obj, "Ready", timeout=60)


def test_a_quota_that_refuses_children_is_told_and_recovers(plane: ControlPlane, namespace: str, start: Any) -> None:
    plane.quota(namespace, {"count/services": "0"})
    start()
    obj = serving(namespace)
    plane.api.create(obj)
    found = wait_for(plane, obj, "Degraded")
    assert condition(found, "Degraded")["reason"] == "QuotaExceeded"
    assert "Service qwen" in condition(found, "Degraded")["message"]
    plane.quota(namespace, {"count/services": "5"})
    wait_children(plane, namespace, expected(planned(plane, obj, own_namespace=namespace)), timeout=60)


def test_a_new_revision_comes_up_and_is_verified_before_the_former_one_goes(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet, verdict: Path
) -> None:
    start()
    obj = serving(namespace)
    first = settle(plane, obj)["status"]["revision"]
    verdict.write_text("recomputed")
    plane.api.merge(path_of(namespace), {"spec": {"engine": {"version": "0.32.0"}}})
    found = plane.api.wait(
        path_of(namespace),
        lambda o: condition(o, "TransferVerified").get("reason") == "RecomputingKV",
        what="the new revision probed",
        timeout=40,
    )
    assert found is not None
    second = found["status"].get("updatingRevision") or found["status"]["revision"]
    assert second != first
    assert {name.rsplit("-", 1)[1] for name in deployments(plane, namespace)} == {first[:8], second[:8]}
    verdict.write_text("ok")
    found = wait_for(plane, obj, "Ready", timeout=60)
    assert found["status"]["revision"] == second
    eventually(
        lambda: {name.rsplit("-", 1)[1] for name in deployments(plane, namespace)},
        lambda short: short == {second[:8]},
        what="the former revision is gone",
    )


def test_a_new_revision_that_never_starts_leaves_the_former_one_serving(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    obj = serving(namespace)
    first = settle(plane, obj)["status"]["revision"]
    kubelet.script(
        lambda pod: never_ready() if pod["metadata"]["labels"].get("kvserving.dev/revision") != first else None
    )
    plane.api.merge(path_of(namespace), {"spec": {"engine": {"version": "0.32.0"}}})
    found = at_generation(plane, namespace, 2)
    found = wait_for(plane, obj, "Ready", "False")
    available = condition(found, "Available")
    assert (available["status"], available["reason"]) == ("True", "RollingOut")
    assert found["status"]["revision"] == first
    assert found["status"]["updatingRevision"] != first
    assert any(first[:8] in name for name in deployments(plane, namespace))


def test_a_router_whose_image_cannot_be_had_is_told_and_nothing_is_called_available(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    kubelet.script({"kvserving.dev/role": "router"}, image_pull_error())
    start()
    obj = serving(namespace)
    plane.api.create(obj)
    found = plane.api.wait(
        path_of(namespace),
        lambda o: condition(o, "RouterReady").get("reason") == "PodFailing",
        what="the router's failure told",
    )
    assert "ImagePullBackOff" in condition(found, "RouterReady")["message"]
    assert "the image is named by spec.router.image" in condition(found, "RouterReady")["message"]
    assert condition(found, "Ready")["status"] == "False"
    assert condition(found, "Available")["status"] == "False"
    found = wait_for(plane, obj, "Degraded")
    assert condition(found, "Degraded")["reason"] == "PodFailing"
