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


@pytest.mark.parametrize(
    ("kind", "reason", "way_out"),
    [
        ("DecodeReady", "EngineHung", "the operator replaces the engine"),
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
