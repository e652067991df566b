"""What is read of a LeaderWorkerSet and of the pods of its groups."""

from __future__ import annotations

from typing import Any

import pytest
from tests.control.bodies import owner_reference, pod, stored, view

from kvserving_operator.control.observe import child_of
from kvserving_operator.control.sets import observe
from kvserving_operator.control.workloads import workload_of
from kvserving_operator.plan.rollout_types import Pods

API_VERSION, KIND = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"
REVISION = "0123456789abcdef"


def groups(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "qwen-decode", "generation": 4}, "spec": {"replicas": 3}, "status": status}


def test_groups_are_counted_as_engines() -> None:
    body = groups(replicas=4, readyReplicas=2, updatedReplicas=3, observedGeneration=4)
    found = workload_of(body, KIND, {})
    assert found is not None
    assert (found.replicas, found.total, found.ready, found.updated, found.current) == (3, 4, 2, 3, True)


@pytest.mark.parametrize(
    ("status", "current"),
    [
        ({"observedGeneration": 4}, True),
        ({"observedGeneration": 3, "conditions": [{"type": "Available", "status": "True"}]}, False),
        # LeaderWorkerSet before 0.9 does not say of which generation its status is.
        ({"conditions": [{"type": "Available", "status": "True"}]}, True),
        ({}, False),
    ],
)
def test_a_status_counts_for_the_present_spec_as_far_as_it_says_so(status: dict[str, Any], current: bool) -> None:
    found = workload_of(groups(**status), KIND, {})
    assert found is not None
    assert found.current is current


def test_an_engine_is_its_leader_and_waits_for_room_when_one_of_its_pods_does() -> None:
    owner = owner_reference(stored(uid="u1"))
    marks = {"kvserving.dev/name": "qwen", "kvserving.dev/role": "decode", "kvserving.dev/revision": REVISION}
    metadata = {"name": "d", "namespace": "prod", "uid": "x", "labels": marks, "ownerReferences": [owner]}
    child = child_of({"metadata": metadata, "spec": {"replicas": 2}}, API_VERSION, KIND)
    nowhere = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
    pods = (
        pod("d-0", "decode", REVISION),
        pod("d-0-1", "decode-worker", REVISION),
        pod("d-1", "decode", REVISION, ready=False),
        pod("d-1-1", "decode-worker", REVISION, ready=False, conditions=[nowhere]),
    )
    (found,) = observe(view(stored(uid="u1"), {child.identity: child}, *pods), (), {}, 0.0).sets
    assert found.decode == Pods(wanted=2, existing=2, ready=1, pending=1)
