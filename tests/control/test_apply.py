from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from tests.control.bodies import KEY, known, planned, stored
from tests.control.fake_api import FakeApi

from kvserving_operator.control.apply import Applier, Outcome
from kvserving_operator.control.config import ROLLOUT_MANAGER
from kvserving_operator.control.failures import ApiFailure
from kvserving_operator.control.observe import Serving, Store, View, child_of
from kvserving_operator.control.permissions import resource_of
from kvserving_operator.control.secrets import SecretKeeper
from kvserving_operator.plan.types import GeneratedSecret, Plan
from kvserving_operator.reasons import Reason


class Stage:
    """A writer before an apiserver in memory."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.store = Store(lambda _: None)
        self.applier = Applier(self.api, self.store)  # type: ignore[arg-type]
        self.serving = stored()
        self.store.put_serving(self.serving)
        reading = planned(self.serving)
        assert reading.plan is not None
        self.plan: Plan = reading.plan

    @property
    def view(self) -> View:
        return known(self.store)

    def apply(self) -> Outcome:
        outcome = Outcome()
        self.api.writes.clear()
        asyncio.run(self.applier.apply(self.view, self.plan, outcome))
        return outcome

    def see(self, kind: str, name: str) -> None:
        """Let the watch tell of an object."""
        body = self.api.objects[kind, "prod", name]
        resource = next(r for r in map(_resource, self.plan.objects) if r.kind == kind)
        self.store.put_child(KEY, child_of(body, resource.api_version, kind))


def _resource(manifest: Any) -> Any:
    return resource_of(str(manifest["apiVersion"]), str(manifest["kind"]))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_everything_is_made_once_and_then_left_alone(stage: Stage) -> None:
    assert stage.apply().writes == len(stage.plan.objects)
    assert stage.apply().writes == 0
    assert stage.api.writes == []


def test_a_restarted_operator_recognises_what_it_made(stage: Stage) -> None:
    stage.apply()
    children = dict(stage.view.children)
    fresh = Stage()
    fresh.api = stage.api
    fresh.applier = Applier(stage.api, fresh.store)  # type: ignore[arg-type]
    for child in children.values():
        fresh.store.put_child(KEY, child)
    assert fresh.apply().writes == 0


def test_a_foreign_object_is_neither_written_nor_forced(stage: Stage) -> None:
    stage.api.put("Service", {"metadata": {"namespace": "prod", "name": "qwen"}, "spec": {}})
    outcome = stage.apply()
    assert outcome.problems["Service", "qwen"].reason == Reason.OWNED_BY_OTHER
    assert ("apply", "Service", "qwen") not in stage.api.writes
    assert outcome.writes == len(stage.plan.objects) - 1, "the other children are made all the same"


def test_a_creation_that_was_sent_twice_is_known_as_ours(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    apply_new = stage.api.apply_new

    async def twice(*args: Any, **params: Any) -> Any:
        await apply_new(*args, **params)
        return await apply_new(*args, **params)

    monkeypatch.setattr(stage.api, "apply_new", twice)
    outcome = stage.apply()
    assert outcome.problems == {}
    monkeypatch.setattr(stage.api, "apply_new", apply_new)
    assert stage.apply().writes == 0


def test_ports_of_a_service_that_cannot_be_merged_are_put_in_the_place_of_the_edited_ones(stage: Stage) -> None:
    stage.apply()
    live = stage.api.objects["Service", "prod", "qwen"]
    wants = live["spec"]["ports"]
    live["metadata"]["managedFields"] = []
    live["spec"] = {**live["spec"], "ports": [{**wants[0], "port": 81}]}
    stage.see("Service", "qwen")
    stage.api.fail["apply", "Service"] = ApiFailure(422, "Invalid", "", "patch services", {})
    outcome = stage.apply()
    assert outcome.problems == {}
    assert [w for w in stage.api.writes if w[1] == "Service"] == [
        ("apply", "Service", "qwen"), ("adjust", "Service", "qwen"), ("apply", "Service", "qwen"),
    ]  # fmt: skip
    assert stage.api.objects["Service", "prod", "qwen"]["spec"]["ports"] == wants


def test_an_update_names_the_uid_so_that_a_replaced_object_is_not_touched(stage: Stage) -> None:
    stage.apply()
    live = stage.api.objects["Service", "prod", "qwen"]
    live["metadata"]["managedFields"] = []
    stage.see("Service", "qwen")
    stage.api.put("Service", {**live, "metadata": {**live["metadata"], "uid": "replaced"}})
    outcome = stage.apply()
    assert outcome.problems["Service", "qwen"].reason == Reason.CONFLICT


def test_a_shape_that_the_server_keeps_differently_is_applied_once_and_accepted(stage: Stage) -> None:
    stage.apply()
    live = stage.api.objects["Service", "prod", "qwen"]
    live["metadata"]["managedFields"] = []
    stage.see("Service", "qwen")
    assert stage.apply().writes == 1
    assert stage.apply().writes == 0


def test_an_edit_that_is_put_back_is_told_with_its_fields_and_a_change_of_the_plan_is_not(stage: Stage) -> None:
    stage.apply()
    live = stage.api.objects["Service", "prod", "qwen"]
    [entry] = live["metadata"]["managedFields"]
    taken = {key: value for key, value in entry["fieldsV1"]["f:spec"].items() if key != "f:selector"}
    live["metadata"]["managedFields"] = [{**entry, "fieldsV1": {**entry["fieldsV1"], "f:spec": taken}}]
    stage.see("Service", "qwen")
    assert stage.apply().put_back == ["Service qwen, spec.selector"]
    assert stage.apply().put_back == []
    live = stage.api.objects["Service", "prod", "qwen"]
    live["metadata"]["annotations"]["kvserving.dev/applied"] = "of another plan"
    stage.see("Service", "qwen")
    again = stage.apply()
    assert (again.writes, again.put_back) == (1, [])
    live = stage.api.objects["Service", "prod", "qwen"]
    live["metadata"]["managedFields"] = []
    stage.see("Service", "qwen")
    assert stage.apply().put_back == [], "without any record nothing is known of an edit"


def test_numbers_that_a_rollout_took_down_and_brings_back_are_no_edit_of_someone_else(stage: Stage) -> None:
    stage.apply()
    [(kind, name)] = [i for i in stage.view.children if i[0] == "Deployment" and "-decode-" in i[1]]
    live = stage.api.objects[kind, "prod", name]
    [entry] = live["metadata"]["managedFields"]
    fields = entry["fieldsV1"]
    spec = {key: value for key, value in fields["f:spec"].items() if key != "f:replicas"}
    taken = {"manager": ROLLOUT_MANAGER, "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    live["metadata"]["managedFields"] = [{**entry, "fieldsV1": {**fields, "f:spec": spec}}, taken]
    stage.see(kind, name)
    again = stage.apply()
    assert (again.writes, again.put_back) == (1, [])


def test_a_failing_child_does_not_keep_the_others_from_being_made(stage: Stage) -> None:
    stage.api.fail["apply", "NetworkPolicy"] = ApiFailure(500, "InternalError", "", "patch", {})
    outcome = stage.apply()
    assert len(outcome.problems) == 1
    assert outcome.again
    assert outcome.writes == len(stage.plan.objects) - 1
    assert stage.apply().writes == 1


def test_a_slow_apiserver_takes_a_worker_for_a_while_only(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 9.0)
    monkeypatch.setattr(stage.applier, "_now", lambda: next(clock))
    outcome = stage.apply()
    assert outcome.unfinished
    assert outcome.again
    assert 0 < outcome.writes < len(stage.plan.objects)
    monkeypatch.setattr(stage.applier, "_now", lambda: 0.0)
    assert stage.apply().writes == len(stage.plan.objects) - outcome.writes


def test_a_kind_that_the_cluster_lacks_is_told_and_not_tried(stage: Stage) -> None:
    stage.applier.absent = frozenset({("networking.k8s.io/v1", "NetworkPolicy")})
    outcome = stage.apply()
    assert {p.reason for p in outcome.problems.values()} == {Reason.KIND_MISSING}
    assert not outcome.again
    assert not [write for write in stage.api.writes if write[1] == "NetworkPolicy"]


def test_prune_looks_again_and_spares_what_is_no_longer_ours(stage: Stage) -> None:
    stage.apply()
    doomed = tuple(child for child in stage.view.owned() if child.kind == "NetworkPolicy")
    assert len(doomed) == 2
    stage.api.objects["NetworkPolicy", "prod", doomed[0].name]["metadata"]["ownerReferences"] = []
    stage.api.writes.clear()
    outcome = Outcome()
    asyncio.run(stage.applier.prune(stage.view, doomed, outcome))
    assert stage.api.writes == [("delete", "NetworkPolicy", doomed[1].name)]
    assert outcome.problems == {}


def test_a_child_that_prune_does_not_find_is_known_again_once_it_is_seen(stage: Stage) -> None:
    """An apiserver that lags knows neither the child nor the spec that names it; the child is still there."""
    stage.apply()
    doomed = tuple(child for child in stage.view.owned() if child.kind == "ConfigMap")
    identity = doomed[0].identity
    body = stage.api.objects.pop(("ConfigMap", "prod", doomed[0].name))
    asyncio.run(stage.applier.prune(stage.view, doomed, Outcome()))
    assert identity not in stage.view.children
    stage.api.objects["ConfigMap", "prod", doomed[0].name] = body
    stage.see("ConfigMap", doomed[0].name)
    assert identity in stage.view.children


SECRET = GeneratedSecret("qwen-keys", {"signing": 32})


def ensure(stage: Stage, serving: Serving | None = None) -> Outcome:
    outcome = Outcome()
    keeper = SecretKeeper(stage.api, lambda: 0.0)  # type: ignore[arg-type]
    asyncio.run(keeper.ensure(serving or stage.serving, (SECRET,), outcome))
    return outcome


def test_a_secret_is_made_once_and_never_written_again(stage: Stage) -> None:
    assert ensure(stage).writes == 1
    assert ensure(stage).writes == 0
    assert stage.api.writes == [("create", "Secret", "qwen-keys")]


def test_two_that_make_a_secret_at_once_agree_on_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure(stage)
    made = stage.api.objects["Secret", "prod", "qwen-keys"]
    real, looks = stage.api.get, []

    async def blind(*args: Any) -> Any:
        looks.append(args)
        return None if len(looks) == 1 else await real(*args)

    monkeypatch.setattr(stage.api, "get", blind)
    outcome = ensure(stage)
    assert outcome.problems == {}
    assert stage.api.objects["Secret", "prod", "qwen-keys"] is made


def test_a_foreign_secret_is_not_used(stage: Stage) -> None:
    stage.api.put("Secret", {"metadata": {"namespace": "prod", "name": "qwen-keys"}, "data": {"signing": "x"}})
    assert ensure(stage).problems["Secret", "qwen-keys"].reason == Reason.OWNED_BY_OTHER


def test_the_secret_of_a_former_object_is_waited_for(stage: Stage) -> None:
    ensure(stage)
    problems = ensure(stage, stored(uid="u2")).problems
    assert problems["Secret", "qwen-keys"].reason == Reason.WAITING_FOR_DELETION


def test_a_secret_without_its_key_is_told(stage: Stage) -> None:
    ensure(stage)
    stage.api.objects["Secret", "prod", "qwen-keys"]["data"] = {}
    assert ensure(stage).problems["Secret", "qwen-keys"].reason == Reason.SECRET_MISSING
