"""Children of kinds that others define, on an apiserver with their definitions: monitors, routes, groups of pods."""

from __future__ import annotations

import os
from typing import Any

import pytest
from e2e.controlplane import build, foreign_crds
from e2e.controlplane.api import ApiError
from e2e.controlplane.controlplane import ControlPlane
from tests.api.objects import load_file
from tests.examples import files
from tests.plan.support import pair, serving

from kvserving_operator.control import drift
from kvserving_operator.control.config import FIELD_MANAGER
from kvserving_operator.plan.planning import plan
from kvserving_operator.plan.types import Observed

KINDS = ("HTTPRoute", "LeaderWorkerSet", "PodMonitor", "ScaledObject")
HAS = Observed(kinds=frozenset(KINDS))
SCALED = pair(
    prefill={"autoscaling": {"max": 4, "metric": "ttft", "via": "keda"}},
    decode={"autoscaling": {"max": 4, "via": "keda"}},
    router={"gateway": {"parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}]}},
)
SPANNING = pair(
    prefill={"nodes": 2, "parallelism": {"tensor": 4}, "args": ["--max-num-seqs", "64"]},
    decode={"nodes": 4, "parallelism": {"tensor": 4}, "template": {"spec": {"tolerations": [{"operator": "Exists"}]}}},
    cache={"l1": {"size": "8Gi"}},
    scheduling={"gang": "volcano", "queue": "serving"},
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
    plans += [
        plan(serving({**SPANNING, "rollout": rollout}, "spanning"), observed=HAS)
        for rollout in ({}, {"paused": True}, {"strategy": "Recreate"})
    ]
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


def test_what_the_apiserver_makes_of_a_group_is_known_as_planned(plane: ControlPlane) -> None:
    """Otherwise the operator would apply it again at every look."""
    objects = plan(serving(SPANNING, "spanning"), observed=HAS).objects
    wanted = next(obj for obj in objects if obj["kind"] == "LeaderWorkerSet")
    made = plane.api.apply(dict(wanted), manager=FIELD_MANAGER)
    assert drift.matches(wanted, drift.own_fields(made["metadata"]["managedFields"]))
    path = plane.api.path_of(wanted)
    plane.api.merge(path, {"metadata": {"uid": made["metadata"]["uid"]}, "spec": {"replicas": 3}})
    assert plane.api.get(f"{path}/scale")["spec"]["replicas"] == 3
