"""Children of kinds that others define, on an apiserver with their definitions: monitors, routes, scaled objects."""

from __future__ import annotations

import os
from typing import Any

import pytest
from e2e.controlplane import build, foreign_crds
from e2e.controlplane.api import ApiError
from e2e.controlplane.controlplane import ControlPlane
from tests.examples import files
from tests.plan.support import pair, serving

from kvserving_operator.api.load import load_file
from kvserving_operator.plan import Observed, plan

KINDS = ("HTTPRoute", "PodMonitor", "ScaledObject")
HAS = Observed(kinds=frozenset(KINDS))
SCALED = pair(
    prefill={"autoscaling": {"max": 4, "metric": "ttft", "via": "keda"}},
    decode={"autoscaling": {"max": 4, "via": "keda"}},
    router={"gateway": {"parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}]}},
)


@pytest.fixture
def plane(own_control_plane: ControlPlane) -> ControlPlane:
    """A control plane with their definitions, or a skip where they cannot be had."""
    try:
        own_control_plane.apply_crds([foreign_crds.crd(kind) for kind in KINDS])
    except build.ProgramsMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    return own_control_plane


def children() -> list[Any]:
    plans = [plan(load_file(path), observed=HAS) for path in files()]
    plans.append(plan(serving(SCALED, "scaled"), observed=HAS))
    return [obj for made in plans for obj in made.objects if obj["kind"] in KINDS]


def test_they_are_taken_as_they_are(plane: ControlPlane) -> None:
    made = children()
    assert {obj["kind"] for obj in made} == set(KINDS)
    for obj in made:
        plane.api.apply(obj, fieldValidation="Strict", dryRun="All")
    for kind in KINDS:
        wrong = next(obj for obj in made if obj["kind"] == kind)
        with pytest.raises(ApiError, match="typo"):
            plane.api.apply({**wrong, "spec": {**wrong["spec"], "typo": 1}}, fieldValidation="Strict", dryRun="All")
