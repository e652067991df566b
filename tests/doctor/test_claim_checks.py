"""Claims without a volume: told once, with the way out of the claim, and not as a lack of nodes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doctor.test_cluster_checks import of_cluster
from tests.doctor.world import CLASS, SPEC, found, healthy, spoiled, with_pod
from tests.plan.support import edited

from kvserving_operator.doctor.facts import ObjectFacts
from kvserving_operator.doctor.findings import Severity

FACTS = healthy()
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
SHARED = {"accessModes": ["ReadWriteMany"]}


def waiting(facts: ObjectFacts, said: str = UNBOUND, **changes: Any) -> ObjectFacts:
    """A decode without a node, by the scheduler's sentence."""

    def spoil(pod: Any) -> None:
        told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
        pod["status"] = {"conditions": [told]}

    return spoiled(with_pod(facts, "decode", spoil), **changes)


def pending(name: str = "weights", kept: str = "") -> dict[str, Any]:
    spec = {**SHARED, **({"storageClassName": kept} if kept else {})}
    return {"claims": {name: {"spec": spec, "status": {"phase": "Pending"}}}}


def test_a_pod_whose_claim_has_no_volume_lacks_no_node() -> None:
    told = found(waiting(FACTS, **pending()))
    assert "unschedulable" not in told
    assert told["claim-unbound"].severity is Severity.ERROR
    assert found(spoiled(FACTS, **pending()))["claim-unbound"].severity is Severity.WARNING, "no pod waits for it"


def test_a_pod_that_lacks_room_as_well_is_told_both() -> None:
    both = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't find available persistent volumes"
    told = found(waiting(FACTS, f"{both} to bind.", **pending()))
    assert "claim-unbound" in told
    assert "add nodes of the kind" in told["unschedulable"].fix


def test_claims_that_may_not_be_read_are_what_the_pod_waits_for() -> None:
    told = found(waiting(FACTS, claims={}))["unschedulable"]
    assert told.fix.startswith("`kubectl get pvc` shows which")
    assert "add nodes" not in told.fix


def test_a_claim_of_the_operators_is_told_with_its_class_and_the_field_that_names_it() -> None:
    cached = healthy(edited(SPEC, "model.cache", {"size": "9Gi", "storageClass": "quick"}))
    told = found(spoiled(cached, classes=(CLASS,), **pending("qwen-model", "quick")))["claim-unbound"]
    assert told.what == "it is Pending (storage class quick), and there is no storage class quick"
    assert "name one of these in spec.model.cache.storageClass" in told.fix
    assert told.fix.endswith("delete the claim, which is then made anew")


@pytest.mark.parametrize("classes", [(), (CLASS,)])
def test_a_class_is_to_be_named_only_where_there_is_one(classes: tuple[Any, ...]) -> None:
    bare = {**CLASS, "metadata": {"name": "nfs"}}
    there = tuple(bare for _ in classes)
    ways = [
        of_cluster(storage_classes=there)["no-default-storage-class"].fix,
        found(spoiled(FACTS, classes=there, **pending()))["claim-unbound"].fix,
    ]
    for way in ways:
        assert way.startswith("name one of these in" if classes else "install a provisioner of volumes"), way
        assert ("nfs" in way) == bool(classes)
