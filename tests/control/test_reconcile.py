from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.control.bodies import KEY, SPEC, known
from tests.control.fake_api import FakeApi

from kvserving_operator.control.apply import Applier
from kvserving_operator.control.events import Recorder
from kvserving_operator.control.failures import ApiFailure
from kvserving_operator.control.observe import Store, View, serving_of
from kvserving_operator.control.reconcile import Reconciler, Result
from kvserving_operator.control.secrets import SecretKeeper
from kvserving_operator.control.verification import Verifications
from kvserving_operator.plan.types import CLUSTER


class Stage:
    """A reconciler before an apiserver in memory that has one object."""

    def __init__(self) -> None:
        self.api = api = FakeApi()
        kube: Any = api
        self.store = Store(lambda _: None)
        self.body = api.put(
            "KVServing", {"metadata": {"namespace": "prod", "name": "qwen", "uid": "u1", "generation": 1}, "spec": SPEC}
        )
        self.store.put_serving(serving_of(self.body))
        self.secrets = secrets = SecretKeeper(kube, lambda: 0.0)
        self.reconciler = Reconciler(
            kube,
            self.store,
            Applier(kube, self.store),
            secrets,
            Verifications(secrets.read, lambda _: None, lambda _: None, lambda: 0.0),
            Recorder(kube, "test", lambda _: None),
            CLUSTER,
        )

    def run(self) -> Result:
        return asyncio.run(self.reconciler.run(KEY))

    def undo_status(self) -> None:
        """Let someone else take the status away."""
        body = dict(self.api.objects["KVServing", "prod", "qwen"])
        body.pop("status", None)
        self.store.put_serving(serving_of(self.api.put("KVServing", body)))

    def meanwhile(self, monkeypatch: pytest.MonkeyPatch, **metadata: Any) -> None:
        """Let someone write the object anew while the children of its present spec are applied."""
        applied = self.api.apply

        async def apply(resource: Any, body: Any, *, force: bool) -> Any:
            monkeypatch.setattr(self.api, "apply", applied)
            former = self.api.objects["KVServing", "prod", "qwen"]
            spec = {**SPEC, "engine": {"version": "0.19.0"}}
            changed = {**former, "metadata": {**former["metadata"], **metadata}, "spec": spec}
            self.store.put_serving(serving_of(self.api.put("KVServing", changed)))
            return await applied(resource, body, force=force)

        monkeypatch.setattr(self.api, "apply", apply)

    @property
    def view(self) -> View:
        return known(self.store)

    @property
    def statuses(self) -> int:
        return sum(verb == "status" for verb, _, _ in self.api.writes)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_status_is_written_once_and_then_left(stage: Stage) -> None:
    assert stage.run().outcome == "changed"
    stage.run()
    written = stage.statuses
    assert stage.run() == Result("unchanged")
    assert stage.statuses == written


def test_a_status_that_someone_else_undoes_each_time_is_set_with_pauses(stage: Stage) -> None:
    stage.run()
    results = []
    for _ in range(20):
        stage.undo_status()
        results.append(stage.run())
    assert stage.statuses < 12
    assert results[-1].again is not None
    assert results[-1].again > 0


def test_a_status_that_is_refused_by_a_conflict_is_tried_again(stage: Stage) -> None:
    stage.api.fail["status", "KVServing"] = ApiFailure(409, "Conflict", "", "patch kvservings/status", {})
    with pytest.raises(ApiFailure):
        stage.run()
    stage.run()
    assert stage.api.objects["KVServing", "prod", "qwen"]["status"]["observedGeneration"] == 1


def test_nothing_is_said_of_an_object_whose_namespace_is_being_deleted(stage: Stage) -> None:
    stage.run()
    before = stage.statuses
    causes = {"causes": [{"reason": "NamespaceTerminating"}], "name": "qwen"}
    [service] = [child for child in stage.view.owned() if child.kind == "Service"]
    del stage.api.objects["Service", "prod", service.name]
    stage.store.remove_child(KEY, "Service", service.name, service.uid, service.version)
    stage.api.fail["apply", "Service"] = ApiFailure(403, "Forbidden", "being terminated", "patch services", causes)
    events = [write for write in stage.api.writes if write[1] == "Event"]
    assert stage.run() == Result("gone")
    assert stage.statuses == before
    assert [write for write in stage.api.writes if write[1] == "Event"] == events


def test_nothing_is_said_where_pods_are_refused_because_the_namespace_goes(stage: Stage) -> None:
    stage.run()
    before = stage.statuses
    [decode] = [child for child in stage.view.owned() if child.kind == "Deployment" and child.role == "decode"]
    assert decode.workload is not None
    said = 'pods "x" is forbidden: unable to create new content in namespace prod because it is being terminated'
    refused = replace(decode.workload, conditions=(("ReplicaFailure", "True", "FailedCreate", said),))
    stage.store.put_child(KEY, replace(decode, version="999", workload=refused))
    assert stage.run() == Result("gone")
    assert stage.statuses == before


def test_a_spec_that_is_written_while_the_former_is_applied_is_not_said_to_be_observed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.meanwhile(monkeypatch, generation=2)
    stage.run()
    status = stage.api.objects["KVServing", "prod", "qwen"]["status"]
    assert {status["observedGeneration"], *(c["observedGeneration"] for c in status["conditions"])} == {1}
    assert "errors" not in status
    assert stage.run().outcome == "invalid"
    status = stage.api.objects["KVServing", "prod", "qwen"]["status"]
    assert {status["observedGeneration"], *(c["observedGeneration"] for c in status["conditions"])} == {2}
    assert "0.19.0" in status["errors"][0]["message"]


def test_what_was_planned_for_an_object_is_not_reported_of_another_one_of_its_name(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.meanwhile(monkeypatch, generation=1, uid="u2")
    stage.run()
    assert stage.statuses == 0
