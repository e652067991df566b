"""What is told of an object's conditions: how grave each is, and the way out that fits its reason."""

from __future__ import annotations

import pytest
from tests.doctor.world import found, healthy, spoiled, with_condition

from kvserving_operator.doctor.findings import Severity

FACTS = healthy()
assert FACTS.live is not None
LIVE = FACTS.live


def test_a_condition_that_passes_is_no_error() -> None:
    told = found(with_condition(FACTS, "PrefillReady", "False", "LoadingModel", "engines load the model"))
    assert told["condition-PrefillReady"].severity is Severity.INFO


@pytest.mark.parametrize("serves", [True, False])
def test_what_a_set_that_comes_up_lacks_costs_nothing_while_another_serves(serves: bool) -> None:
    coming = with_condition(FACTS, "DecodeReady", "False", "PodFailing", "pod d: CrashLoopBackOff")
    available = ("RollingOut", "revision a serves while b comes up") if serves else ("Ready", "requests can be served")
    told = found(with_condition(coming, "Available", "True", *available))["condition-DecodeReady"]
    assert (told.why == "the former revision serves meanwhile; what was changed waits") is serves
    assert told.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("kind", "reason", "way_out"),
    [
        ("DecodeReady", "EngineHung", "the operator replaces the engine"),
        ("DecodeReady", "ClaimUnbound", "`kubectl describe pvc`"),
        ("DecodeReady", "PodLost", "the one in its place is coming up"),
        ("DecodeReady", "PeerStale", "the operator replaces the engine"),
        ("ScalingReady", "MetricsUnavailable", "an adapter for custom metrics"),
        ("ScalingReady", "ScalerFailed", "`kubectl describe` the scaler"),
    ],
)
def test_the_way_out_of_a_condition_fits_its_reason(kind: str, reason: str, way_out: str) -> None:
    spoilt = spoiled(
        FACTS,
        body={
            **LIVE.body,
            "status": {
                **LIVE.status,
                "conditions": [{"type": kind, "status": "False", "reason": reason, "message": "so it is"}],
            },
        },
    )
    assert way_out in found(spoilt)[f"condition-{kind}"].fix


@pytest.mark.parametrize(
    ("suspend", "message", "way_out"),
    [
        (True, "spec.suspend stops all engines and routers", "set spec.suspend to false"),
        (False, "no decode pod is asked for", "raise the replicas"),
    ],
)
def test_what_is_suspended_is_not_waited_for(suspend: bool, message: str, way_out: str) -> None:
    stopped = with_condition(FACTS, "DecodeReady", "False", "Suspended", message)
    assert stopped.live is not None
    body = {**stopped.live.body, "spec": {**stopped.live.body["spec"], "suspend": suspend}}
    told = found(spoiled(stopped, body=body))["condition-DecodeReady"]
    assert told.severity is Severity.INFO
    assert told.fix.startswith(way_out)


@pytest.mark.parametrize(
    ("message", "way_out"),
    [
        ("0 of 1 decode pods are ready: pod a: ImagePullBackOff (no such image)", "`kubectl describe pod` has the"),
        ("0 of 1 decode pods are ready: pod a: ErrImagePull", "`kubectl describe pod` has the"),
        ("pod a: CrashLoopBackOff (container engine: StartError: no such file)", "the container never ran"),
        ("pod a: CrashLoopBackOff (container engine: exit code 2)", "`kubectl logs --previous` says why it ends"),
        ("pods cannot be created: FailedCreate: denied", "`kubectl logs` of the pod"),
    ],
)
def test_the_way_out_of_a_failing_pod_fits_why_it_fails(message: str, way_out: str) -> None:
    told = found(with_condition(FACTS, "DecodeReady", "False", "PodFailing", message))["condition-DecodeReady"]
    assert told.fix.startswith(way_out)
