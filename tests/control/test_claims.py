"""Claims without a volume: the one that lacks it is blamed, by the field that decides on it, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.control.bodies import KEY, SPEC, children, live, planned, stored, view
from tests.control.test_conditions import by_type, facts, with_pods

from kvserving_operator.control.claims import Claim
from kvserving_operator.control.facts import Facts
from kvserving_operator.control.observe import Child, Store, child_of
from kvserving_operator.reasons import Reason

STORE: dict[str, Any] = {"l2": {"type": "filesystem", "size": "1Gi", "storageClass": "fast"}, "l1": {"size": "1Gi"}}
OF_STORE = {**SPEC, "model": {"uri": "pvc://models/qwen"}, "cache": STORE}
OF_WEIGHTS = {**SPEC, "model": {"uri": "hf://Qwen/Qwen3-8B", "cache": {"size": "1Gi", "storageClass": "fast"}}}
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."


def waiting(spec: dict[str, Any], said: str, mounted: tuple[str, ...], **claims: Claim) -> Facts:
    """An object whose decodes have no node, with its claims as given and every other one bound."""
    made = facts(spec=spec)
    held = [
        replace(pod, ready=False, unschedulable=said, claims=mounted) for pod in made.view.pods if pod.role == "decode"
    ]
    made = with_pods(made, *held)
    there: dict[tuple[str, str], Child] = {}
    for identity, child in made.view.children.items():
        if child.claim is not None:
            child = replace(child, claim=claims.get(child.name.rpartition("-")[2], Claim("Bound", "fast")))
        there[identity] = child
    return replace(made, view=view(made.view.serving, there, *made.view.pods))


@pytest.mark.parametrize(
    ("spec", "name", "field"),
    [(OF_STORE, "l2", "spec.cache.l2.storageClass"), (OF_WEIGHTS, "model", "spec.model.cache.storageClass")],
)
def test_the_claim_that_has_no_volume_is_blamed_and_no_other(spec: dict[str, Any], name: str, field: str) -> None:
    made = waiting(spec, UNBOUND, ("models", f"qwen-{name}"), **{name: Claim("Pending", "fast")})
    found = by_type(made)
    for kind in ("DecodeReady", "StorageReady"):
        assert (found[kind].status, found[kind].reason) == ("False", Reason.CLAIM_UNBOUND)
        assert f"no volume is bound to claim qwen-{name} (storage class fast): " in found[kind].message
        assert f"name another in {field}" in found[kind].message
        assert "models" not in found[kind].message
    assert found["Stalled"].reason is Reason.CLAIM_UNBOUND


def test_a_claim_without_a_class_where_none_is_the_default_is_told_so() -> None:
    made = waiting(OF_STORE, UNBOUND, ("qwen-l2",), l2=Claim("Pending", ""))
    assert "no storage class, and the cluster has no default): name one in" in by_type(made)["StorageReady"].message


def test_a_claim_of_somebody_else_is_blamed_where_ours_is_bound() -> None:
    found = by_type(waiting(OF_STORE, UNBOUND, ("models", "qwen-l2")))
    assert "no volume is bound to claim models (spec.model.uri): " in found["DecodeReady"].message
    assert "qwen-l2" not in found["DecodeReady"].message
    assert found["StorageReady"].holds, "the operator's own claim has its volume"


def test_of_several_claims_of_others_none_is_blamed_alone() -> None:
    message = by_type(waiting(OF_STORE, UNBOUND, ("models", "logs", "qwen-l2")))["DecodeReady"].message
    assert "one of the claims models (spec.model.uri), logs: `kubectl get pvc` shows which" in message


def test_a_claim_that_waits_for_its_first_pod_is_not_at_fault() -> None:
    waits = Claim("Pending", "local")
    found = by_type(waiting(OF_STORE, "0/1 nodes are available: 1 Insufficient cpu.", ("qwen-l2",), l2=waits))
    assert (found["StorageReady"].status, found["StorageReady"].reason) == ("False", Reason.STARTING)
    assert found["Degraded"].reason is Reason.INSUFFICIENT_CAPACITY
    assert by_type(waiting(OF_STORE, "", ("qwen-l2",), l2=waits))["StorageReady"].holds


def test_an_object_is_looked_at_again_when_its_claim_is_bound() -> None:
    serving = stored(OF_STORE)
    changed: list[Any] = []
    store = Store(changed.append)
    plan = planned(serving).plan
    assert plan is not None
    [manifest] = [m for m in plan.objects if m["kind"] == "PersistentVolumeClaim"]
    body = live(dict(manifest), serving, status={"phase": "Pending"})
    store.put_child(KEY, child_of(body, "v1", "PersistentVolumeClaim"))
    changed.clear()
    bound = {**body, "metadata": {**body["metadata"], "resourceVersion": "11"}, "status": {"phase": "Bound"}}
    store.put_child(KEY, child_of(bound, "v1", "PersistentVolumeClaim"))
    assert changed == [KEY]
    assert children(serving)["PersistentVolumeClaim", "qwen-l2"].claim == Claim("", "fast")
