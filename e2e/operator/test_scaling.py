"""Roles that are scaled: the number that somebody writes reaches the engines, and nothing takes it back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from e2e.controlplane.api import Json
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.operator.objects import children, condition, eventually, path_of, serving
from e2e.operator.waiting import settle, wait_for_ready, wait_planned

SCALED: Mapping[str, Any] = {"autoscaling": {"min": 1, "max": 9, "via": "external"}}


def target(namespace: str, role: str = "decode") -> str:
    return f"/apis/kvserving.dev/v1alpha1/namespaces/{namespace}/kvservingroles/qwen-{role}"


def scale(plane: ControlPlane, namespace: str, replicas: int, role: str = "decode") -> None:
    """Write the number as HPA does."""
    plane.api.merge(f"{target(namespace, role)}/scale", {"spec": {"replicas": replicas}}, fieldManager="hpa")


def engines(plane: ControlPlane, namespace: str, role: str) -> int:
    """How many engines the Deployments of a role ask for."""
    return sum(
        child["spec"]["replicas"]
        for (kind, _), child in children(plane, namespace).items()
        if kind == "Deployment" and child["metadata"]["labels"]["kvserving.dev/role"] == role
    )


def change(plane: ControlPlane, namespace: str, **spec: Any) -> None:
    plane.api.merge(path_of(namespace), {"spec": spec})


def shown(plane: ControlPlane, namespace: str, replicas: int, role: str = "decode") -> Json:
    """Wait until ``/scale`` shows so many pods, and return it."""
    plane.api.wait(
        target(namespace, role),
        lambda o: o is not None and (o.get("status") or {}).get("replicas") == replicas,
        what=f"{replicas} pods in the status of {role}",
        timeout=30,
    )
    return plane.api.get(f"{target(namespace, role)}/scale")


def test_a_scalers_number_outlives_reconciles_restarts_and_rollouts(
    plane: ControlPlane, namespace: str, proxy: FaultProxy, start: Any, kubelet: FakeKubelet
) -> None:
    operator = start("--no-elect", "--resync=0.5")
    settle(plane, serving(namespace, decode=SCALED))
    assert engines(plane, namespace, "decode") == 1
    scale(plane, namespace, 3)
    wait_for_ready(plane, namespace, "decode", "3/3")
    assert shown(plane, namespace, 3)["spec"]["replicas"] == 3
    proxy.wait_quiet(2)
    since, done = time.monotonic(), operator.metric("kvserving_operator_resyncs_total")
    eventually(lambda: operator.metric("kvserving_operator_resyncs_total"), lambda n: n >= done + 3, what="resyncs")
    assert [r for r in proxy.writes(since=since) if r.info.resource in ("deployments", "kvservingroles")] == []
    operator.kill()
    start("--no-elect", "--resync=0.5")
    change(plane, namespace, engine={"version": "0.32.0"})
    wait_planned(plane, namespace, timeout=90)
    wait_for_ready(plane, namespace, "decode", "3/3")
    assert plane.api.get(target(namespace))["spec"]["replicas"] == 3


def test_four_zero_four(plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet) -> None:
    start()
    settle(plane, serving(namespace, decode=SCALED))
    for number in (4, 0, 4):
        scale(plane, namespace, number)
        # A Scale leaves out what is 0.
        assert shown(plane, namespace, number)["spec"].get("replicas", 0) == number
        assert engines(plane, namespace, "decode") == number
    wait_for_ready(plane, namespace, "decode", "4/4")


def test_the_ratio_raises_the_role_that_lacks_and_says_so(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    settle(plane, serving(namespace, prefill=SCALED, decode=SCALED, ratio={"min": "1:3"}))
    scale(plane, namespace, 6)
    wait_for_ready(plane, namespace, "decode", "6/6")
    wait_for_ready(plane, namespace, "prefill", "2/2")
    assert plane.api.get(target(namespace, "prefill"))["spec"]["replicas"] == 1
    told = condition(plane.api.get(path_of(namespace)), "ScalingReady")
    assert told["status"] == "True"
    assert "prefill: 2 in place of 1 by spec.ratio.min 1:3" in told["message"]


def test_a_scale_target_deleted_by_hand_takes_no_engine_away(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    settle(plane, serving(namespace, decode=SCALED))
    scale(plane, namespace, 3)
    wait_for_ready(plane, namespace, "decode", "3/3")
    former = plane.api.get(target(namespace))["metadata"]["uid"]
    plane.api.delete(target(namespace))
    made = plane.api.wait(
        target(namespace), lambda o: o is not None and o["metadata"]["uid"] != former, what="a new one", timeout=10
    )
    assert made is not None
    assert made["spec"]["replicas"] == 3
    assert engines(plane, namespace, "decode") == 3


def test_a_suspended_object_keeps_the_number_for_afterwards(
    plane: ControlPlane, namespace: str, start: Any, kubelet: FakeKubelet
) -> None:
    start()
    settle(plane, serving(namespace, decode=SCALED))
    scale(plane, namespace, 3)
    wait_for_ready(plane, namespace, "decode", "3/3")
    change(plane, namespace, suspend=True)
    assert shown(plane, namespace, 0)["spec"]["replicas"] == 3
    change(plane, namespace, suspend=False)
    wait_for_ready(plane, namespace, "decode", "3/3")
