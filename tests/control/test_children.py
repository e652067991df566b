from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.control.bodies import KEY, live, planned, stored, view
from tests.control.bodies import children as all_children

from kvserving_operator.control import children, drift
from kvserving_operator.control.children import Action
from kvserving_operator.control.observe import Child, child_of
from kvserving_operator.plan import history

MANIFEST: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "qwen-decode", "namespace": "prod", "labels": {"kvserving.dev/name": "qwen"}},
    "spec": {"template": {"spec": {}}},
}


def seen(manifest: dict[str, Any] = MANIFEST, uid: str = "u1", **changes: Any) -> Child:
    return child_of(live(manifest, stored(uid=uid), **changes), "apps/v1", "Deployment")


def decided(found: Child | None, manifest: dict[str, Any] = MANIFEST) -> Action:
    return children.decide(children.wanted(stored(), manifest, found), found, "u1")


def owner(kind: str, name: str, uid: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "uid": uid, "controller": True}]}


def test_what_is_missing_is_created_and_what_is_as_applied_is_left() -> None:
    assert decided(None) is Action.CREATE
    assert decided(seen()) is Action.NOTHING


def test_another_manifest_is_an_update() -> None:
    assert decided(seen(), {**MANIFEST, "spec": {"template": {"spec": {"a": 1}}}}) is Action.UPDATE


def test_what_nobody_or_somebody_else_owns_is_refused() -> None:
    assert decided(seen(metadata={"ownerReferences": []})) is Action.REFUSE
    assert decided(seen(metadata=owner("ReplicaSet", "x", "u9"))) is Action.REFUSE
    assert decided(seen(metadata=owner("KVServing", "other", "u9"))) is Action.REFUSE


def test_what_a_former_object_of_the_name_left_is_waited_for() -> None:
    assert decided(seen(uid="u0")) is Action.WAIT
    assert "waiting for it" in children.refusal(seen(uid="u0"), KEY.name)


def test_the_child_of_an_object_of_another_name_is_never_waited_for() -> None:
    """Object a owns Service a-store; an object called a-store wants a Service of that name."""
    manifest, live = MANIFEST, seen(uid="u0")
    other = stored(name="other")
    assert children.decide(children.wanted(other, manifest, live), live, "u1") is Action.REFUSE
    assert "make the KVServing other anew under another name" in children.refusal(live, "other")


@pytest.mark.parametrize(("namespace", "own"), [("default", True), ("prod", False)])
def test_the_service_of_the_apiserver_is_not_told_to_be_deleted(namespace: str, own: bool) -> None:
    service = replace(seen(), kind="Service", namespace=namespace, name="kubernetes", owner=None)
    said = children.refusal(service, "kubernetes")
    assert ("delete it if nothing needs it" not in said) is own
    assert ("in another namespace" in said) is own
    assert "make the KVServing kubernetes anew under another name (no object can be renamed)" in said


def test_what_is_being_deleted_is_waited_for() -> None:
    assert decided(seen(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})) is Action.WAIT


def test_replicas_that_only_we_set_are_kept_when_a_scaler_takes_over() -> None:
    before = {**MANIFEST, "spec": {"template": {"spec": {}}, "replicas": 4}}
    child = children.wanted(stored(), MANIFEST, seen(before))
    assert child.body["spec"]["replicas"] == 4
    assert children.decide(child, seen(before), "u1") is Action.NOTHING


def test_replicas_that_a_scaler_set_are_left_out() -> None:
    before = live({**MANIFEST, "spec": {"template": {"spec": {}}, "replicas": 4}}, stored())
    del before["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:replicas"]
    child = children.wanted(stored(), MANIFEST, child_of(before, "apps/v1", "Deployment"))
    assert "replicas" not in child.body["spec"]


def test_a_child_carries_its_owner_and_the_digest_of_its_manifest() -> None:
    child = children.wanted(stored(), MANIFEST, None)
    assert child.body["metadata"]["ownerReferences"] == [children.owner_reference(stored())]
    assert child.body["metadata"]["annotations"] == {drift.DIGEST: child.digest}
    assert "annotations" not in MANIFEST["metadata"]


def test_a_former_revision_stays_until_the_rollout_has_removed_it() -> None:
    serving = stored()
    reading = planned(serving)
    assert reading.plan is not None
    changed = stored({**dict(serving.spec), "engine": {"version": "0.32.0"}})
    newer = planned(changed).plan
    assert newer is not None
    now = view(changed, all_children(serving))
    assert {c.revision for c in children.superfluous(now, newer, removed=())} <= {""}
    gone = children.superfluous(now, newer, removed={reading.plan.revision})
    assert {c.kind for c in gone} == {"Deployment", "NetworkPolicy"}
    assert gone[0].kind == "Deployment", "pods go before the policies that guard them"
    assert children.superfluous(view(serving, all_children(serving)), reading.plan, removed={newer.revision}) == ()


def test_the_spec_of_a_revision_that_is_there_outlives_any_number_of_newer_ones() -> None:
    first = stored()
    serving = planned(first).plan
    assert serving is not None
    found = dict(all_children(first))
    attempts = []
    for number in range(history.KEPT + 2):
        tried = stored({**dict(first.spec), "model": {"uri": f"pvc://attempt{number}/m"}})
        plan = planned(tried).plan
        assert plan is not None
        attempts.append((tried, plan))
        for identity, child in all_children(tried).items():
            if child.kind == "ConfigMap" and child.revision == plan.revision:
                found[identity] = replace(child, created=f"2026-02-01T00:00:0{number}Z")
    last, plan = attempts[-1]
    gone = {child.revision for child in children.superfluous(view(last, found), plan, removed=())}
    assert gone == {attempts[0][1].revision}, "not the oldest of those that are not there, or more than the bound"
    # Once the rollout has taken the first one away, it is a former one like others, and the oldest.
    doomed = children.superfluous(view(last, found), plan, removed={serving.revision})
    specs = [child.revision for child in doomed if child.kind == "ConfigMap"]
    assert specs == [serving.revision, attempts[0][1].revision]
