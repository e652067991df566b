"""Scale targets: whose the number is, what the status says, and how scalers that fail are told of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.control.bodies import KEY, known, live, planned, pod, stored, view
from tests.control.fake_api import FakeApi, Json

from kvserving_operator.control import role_status, scaling
from kvserving_operator.control.apply import Applier, Outcome
from kvserving_operator.control.conditions import conditions
from kvserving_operator.control.facts import Condition, Facts
from kvserving_operator.control.failures import ApiFailure
from kvserving_operator.control.observe import Child, Store, View, child_of
from kvserving_operator.plan.scaling import Numbers
from kvserving_operator.plan.types import Plan
from kvserving_operator.reasons import Reason

ROLE = "KVServingRole"
HPA = "HorizontalPodAutoscaler"
SPEC: dict[str, Any] = {
    "model": {"uri": "hf://Qwen/Qwen3-8B"},
    "prefill": {"replicas": 1},
    "decode": {"autoscaling": {"min": 2, "max": 6}},
}
SELECTOR = "kvserving.dev/name=qwen,kvserving.dev/role=decode"


def plan_of(spec: dict[str, Any] = SPEC) -> Plan:
    found = planned(stored(spec)).plan
    assert found is not None
    return found


def manifest(kind: str, role: str = "decode") -> dict[str, Any]:
    (found,) = (
        m for m in plan_of().objects if m["kind"] == kind and m["metadata"]["labels"].get("kvserving.dev/role") == role
    )
    return dict(found)


def target(replicas: int | None = None, *, ours: bool = False, **changes: Any) -> Child:
    """The live scale target; ``replicas`` was set by a scaler, or only by the operator."""
    made = manifest(ROLE)
    if ours:
        return child_of(
            live({**made, "spec": {**made["spec"], "replicas": replicas}}, stored(SPEC), **changes), "", ROLE
        )
    body = live(made, stored(SPEC), **changes)
    return child_of(
        {**body, "spec": {**body["spec"], **({} if replicas is None else {"replicas": replicas})}}, "", ROLE
    )


def deployment(replicas: int, *, role: str = "decode", revision: str = "") -> Child:
    made = manifest("Deployment", role)
    name, marks = made["metadata"]["name"] + revision, made["metadata"]["labels"]
    metadata = {
        **made["metadata"],
        "name": name,
        "labels": {**marks, **({"kvserving.dev/revision": revision} if revision else {})},
    }
    body = live({**made, "metadata": metadata, "spec": {**made["spec"], "replicas": replicas}}, stored(SPEC))
    return child_of(body, "apps/v1", "Deployment")


def hpa(*failing: tuple[str, str, str], kind: str = HPA) -> Child:
    listed = [{"type": t, "status": "False", "reason": r, "message": m} for t, r, m in failing]
    holding = [{"type": "ScalingLimited", "status": "False", "reason": "DesiredWithinRange", "message": "x"}]
    body = live(manifest(HPA), stored(SPEC), status={"conditions": [*holding, *listed]})
    return child_of(body, "", kind)


def seen(*children: Child, pods: Any = (), status: Any = None) -> View:
    return view(stored(SPEC, status), {child.identity: child for child in children}, *pods)


def recorded(replicas: Any) -> dict[str, Any]:
    """A status that tells how many decode engines were asked for."""
    return {"roles": {"decode": {"replicas": replicas}}}


class TestAsked:
    def test_it_is_the_number_in_the_scale_target_whoever_set_it(self) -> None:
        assert scaling.asked(seen(target(4), deployment(2))) == {"decode": 4}
        assert scaling.asked(seen(target(3, ours=True), deployment(2))) == {"decode": 3}
        assert scaling.asked(seen(target(0), deployment(2))) == {"decode": 0}

    def test_without_a_scale_target_it_is_what_was_asked_for_last_whatever_a_rollout_has_of_it(self) -> None:
        both = deployment(3), deployment(1, revision="old")
        assert scaling.asked(seen(*both, status=recorded(3))) == {"decode": 3}
        assert scaling.asked(seen(deployment(1), deployment(2, revision="old"), status=recorded(3))) == {"decode": 3}
        assert scaling.asked(seen(target(None), deployment(2), status=recorded(3))) == {"decode": 3}
        assert scaling.asked(seen(target(4), *both, status=recorded(3))) == {"decode": 4}

    @pytest.mark.parametrize("status", [{}, recorded(0), recorded("3"), recorded(-3), {"roles": {}}, {"roles": "x"}])
    def test_where_the_status_says_nothing_it_is_what_the_largest_revision_has(self, status: Any) -> None:
        assert scaling.asked(seen(status=status)) == {}
        assert scaling.asked(seen(deployment(0), status=status)) == {}
        assert scaling.asked(seen(deployment(3), deployment(1, revision="old"), status=status)) == {"decode": 3}

    def test_an_object_of_somebody_else_with_our_label_asks_for_nothing(self) -> None:
        theirs = target(5, metadata={"ownerReferences": []})
        assert scaling.asked(seen(theirs)) == {}


class TestSeeded:
    def number(self, live: Child | None, *others: Child, status: Any = None) -> Any:
        return scaling.seeded(seen(*others, status=status), manifest(ROLE), live)["spec"].get("replicas")

    def test_a_new_scale_target_starts_with_what_was_asked_for_within_its_bounds(self) -> None:
        assert self.number(None, deployment(4), deployment(1, revision="old"), status=recorded(4)) == 4
        assert self.number(None, status=recorded(1)) == 2
        assert self.number(None, status=recorded(9)) == 6

    def test_without_a_status_it_starts_with_the_fewest_or_with_what_runs(self) -> None:
        assert self.number(None) == 2
        assert self.number(None, deployment(5)) == 5
        assert self.number(None, deployment(1)) == 2
        assert self.number(None, deployment(9)) == 6

    def test_a_number_that_someone_took_away_is_given_again(self) -> None:
        assert self.number(target(None), deployment(4)) == 4

    def test_the_operators_own_number_is_kept_and_a_scalers_is_left_out(self) -> None:
        assert self.number(target(5, ours=True)) == 5
        assert self.number(target(5)) is None

    def test_other_kinds_are_left_alone(self) -> None:
        made = manifest("Deployment")
        assert scaling.seeded(seen(), made, None) is made


class Stage:
    """A writer before an apiserver in memory."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.store = Store(lambda _: None)
        self.store.put_serving(stored(SPEC))
        self.applier = Applier(self.api, self.store)  # type: ignore[arg-type]

    @property
    def view(self) -> View:
        return known(self.store)

    @property
    def role(self) -> Json:
        return self.api.objects[ROLE, "prod", "qwen-decode"]

    def apply(self, spec: dict[str, Any] = SPEC) -> Outcome:
        outcome = Outcome()
        self.api.writes.clear()
        asyncio.run(self.applier.apply(self.view, plan_of(spec), outcome))
        return outcome

    def report(self) -> Outcome:
        outcome = Outcome()
        self.api.writes.clear()
        asyncio.run(role_status.report(self.api, self.store, self.view, plan_of(), outcome))  # type: ignore[arg-type]
        return outcome

    def scale(self, replicas: int) -> None:
        """Set the number as HPA does: an update by another manager, who takes the field over."""
        entry = next(e for e in self.role["metadata"]["managedFields"] if e["manager"] == "kvserving-operator")
        entry["fieldsV1"]["f:spec"].pop("f:replicas", None)
        self.role["spec"] = {**self.role["spec"], "replicas": replicas}
        self.api.put(ROLE, self.role)

    def watch(self) -> None:
        self.store.put_child(KEY, child_of(self.role, "kvserving.dev/v1alpha1", ROLE))


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    made.apply()
    return made


def test_a_scale_target_is_made_with_a_number_in_one_write_and_then_left_alone(stage: Stage) -> None:
    assert stage.role["spec"]["replicas"] == 2
    assert stage.apply().writes == 0


def test_a_scalers_number_is_kept_when_the_bounds_change(stage: Stage) -> None:
    stage.scale(5)
    stage.watch()
    wider = {**SPEC, "decode": {"autoscaling": {"min": 2, "max": 9}}}
    stage.apply(wider)
    assert stage.role["spec"]["bounds"] == {"min": 2, "max": 9}
    assert stage.role["spec"]["replicas"] == 5
    assert "f:replicas" not in str(stage.role["metadata"]["managedFields"])
    assert stage.apply(wider).writes == 0


def test_a_number_that_was_not_seen_yet_is_not_overwritten(stage: Stage) -> None:
    """The operator keeps its own number with each apply; between reading and applying a scaler may have set one."""
    sent: list[Json] = []
    apply = stage.api.apply

    async def recorded(resource: Any, body: Any, *, force: bool) -> Json:
        sent.append(dict(body))
        return await apply(resource, body, force=force)

    stage.api.apply = recorded  # type: ignore[method-assign]
    version = stage.view.children[ROLE, "qwen-decode"].version
    stage.apply({**SPEC, "decode": {"autoscaling": {"min": 2, "max": 9}}})
    (role,) = (body for body in sent if body["kind"] == ROLE)
    assert role["spec"]["replicas"] == 2
    assert role["metadata"]["resourceVersion"] == version


def test_the_status_counts_the_pods_of_every_revision_and_is_written_once(stage: Stage) -> None:
    for number, revision in enumerate(("a" * 8, "b" * 8)):
        stage.store.put_pod(KEY, pod(f"p{number}", "decode", revision))
    stage.store.put_pod(KEY, pod("p2", "prefill", "a" * 8))
    stage.store.put_pod(KEY, pod("p3", "decode", "a" * 8, ready=False, phase="Failed"))
    assert stage.report().writes == 1
    assert stage.role["status"] == {"observedGeneration": 1, "replicas": 2, "selector": SELECTOR}
    assert stage.report().writes == 0
    assert stage.api.writes == []


def test_a_status_that_somebody_edited_is_written_again(stage: Stage) -> None:
    stage.report()
    stage.api.put(ROLE, {**stage.role, "status": {"replicas": 9}})
    stage.watch()
    assert stage.report().writes == 1
    assert stage.role["status"]["selector"] == SELECTOR


def test_a_scale_target_that_went_meanwhile_is_no_problem_and_looked_for_again(stage: Stage) -> None:
    stage.api.fail["status", ROLE] = ApiFailure(404, "NotFound", "", "patch", {"name": "qwen-decode"})
    assert stage.report().problems == {}
    assert (ROLE, "qwen-decode") not in stage.view.children


def test_a_status_that_may_not_be_written_is_a_problem_of_the_scale_target(stage: Stage) -> None:
    stage.api.fail["status", ROLE] = ApiFailure(403, "Forbidden", "", "patch", {})
    assert stage.report().problems[ROLE, "qwen-decode"].reason is Reason.FORBIDDEN


def told(*children: Child, scaling: Numbers | None = None, pods: Any = (), suspended: bool = False) -> Condition | None:
    facts = Facts(
        view=seen(*children, pods=pods),
        plan=plan_of(),
        revision=plan_of().revision,
        disaggregated=True,
        routed=True,
        suspended=suspended,
        scaling=scaling,
    )
    return next((found for found in conditions(facts) if found.type == "ScalingReady"), None)


READY = (pod("d", "decode", "a" * 8),)
NO_METRIC = ("ScalingActive", "FailedGetPodsMetric", "no metrics returned from custom metrics API")


@pytest.mark.parametrize(
    ("failing", "pods", "reason"),
    [
        ([NO_METRIC], READY, Reason.METRICS_UNAVAILABLE),
        ([NO_METRIC], (), Reason.STARTING),
        ([("ScalingActive", "ScalingDisabled", "0")], READY, Reason.SUSPENDED),
        ([("AbleToScale", "FailedGetScale", "no such kind")], READY, Reason.SCALER_FAILED),
    ],
)
def test_a_scaler_that_cannot_scale_is_told_of_by_cause(failing: Any, pods: Any, reason: Reason) -> None:
    found = told(hpa(*failing), pods=pods)
    assert found is not None
    assert (found.status, found.reason) == ("False", reason)
    assert "HorizontalPodAutoscaler qwen-decode" in found.message


def test_what_a_scaler_says_all_the_time_changes_nothing() -> None:
    assert hpa().failing == ()
    found = told(hpa(), pods=READY)
    assert found is not None
    assert found.holds


def test_numbers_that_the_ratio_changed_are_told_and_bounds_that_cannot_hold_are_a_fault() -> None:
    held = told(hpa(), scaling=Numbers({}, ("prefill: 3 in place of 1",)))
    unmet = told(hpa(), scaling=Numbers({}, unmet="spec.ratio.min asks for more"))
    assert held is not None
    assert unmet is not None
    assert held.holds
    assert held.message.endswith("; prefill: 3 in place of 1")
    assert (unmet.status, unmet.reason) == ("False", Reason.RATIO_UNMET)


def test_nothing_is_said_of_scaling_while_the_object_is_suspended() -> None:
    assert told(hpa(NO_METRIC), suspended=True) is None
