"""A pod that is lost is told at once: workloads count it as ready for a while."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.control.bodies import KEY, SPEC, pod, pods_of, view
from tests.control.rollout_stage import Stage
from tests.control.test_conditions import STORED, by_type, document, facts, with_pods, without_pods
from tests.control.test_rollouts import run, settle

from kvserving_operator.control.facts import Facts
from kvserving_operator.control.pods import PodState
from kvserving_operator.reasons import Reason

GROUPS = {**SPEC, "decode": {"nodes": 2, "parallelism": {"tensor": 2}, "replicas": 1}}


def lost(found: Facts, role: str, how: str) -> Facts:
    """``found`` after a role lost its pods, which nobody but they themselves have told."""
    if how == "gone":
        return without_pods(found, role)
    changes = {"killed": {"ready": False}, "on its way out": {"deleting": True}, "without address": {"address": ""}}
    there = [replace(pod, **changes[how]) for pod in found.view.pods if pod.role == role]  # type: ignore[arg-type]
    assert there
    return with_pods(found, *there)


@pytest.mark.parametrize("how", ["gone", "killed", "on its way out", "without address"])
@pytest.mark.parametrize(("role", "name"), [("prefill", "Prefill"), ("decode", "Decode"), ("router", "Router")])
def test_a_role_without_a_pod_that_serves_is_told_before_its_workload_counts_anew(
    role: str, name: str, how: str
) -> None:
    made = facts()
    found = by_type(lost(made, role, how))
    assert (found["Available"].status, found["Available"].reason) == ("False", Reason.STARTING)
    assert found[f"{name}Ready"].status == "False"
    assert f"0 of {1 if role == 'prefill' else 2} {role} pods are ready" in found[f"{name}Ready"].message
    assert found["Ready"].message == f"{name}Ready: {found[f'{name}Ready'].message}"


def test_the_column_of_a_role_counts_the_pods_that_serve() -> None:
    one, *_ = (pod for pod in facts().view.pods if pod.role == "decode")
    shown = document(with_pods(facts(), replace(one, ready=False)))
    assert shown["roles"]["decode"] == {"replicas": 2, "ready": 1, "summary": "1/2"}


def test_one_engine_of_two_is_enough_to_be_available() -> None:
    one, *_ = (pod for pod in facts().view.pods if pod.role == "decode")
    found = by_type(with_pods(facts(), replace(one, deleting=True)))
    assert found["Available"].holds
    assert (found["DecodeReady"].status, found["Ready"].status) == ("False", "False")


@pytest.mark.parametrize("named", ["qwen-decode-mine", "other-5c6f7d8b9-0"])
def test_a_pod_that_no_workload_of_the_object_made_makes_it_not_available(named: str) -> None:
    made = without_pods(facts(), "decode")
    assert not by_type(with_pods(made, pod(named, "decode", made.revision)))["Available"].holds


def test_a_router_that_is_not_behind_the_service_serves_no_client() -> None:
    made = facts()
    apart = [replace(pod, traffic=False) for pod in made.view.pods if pod.role == "router"]
    found = by_type(with_pods(made, *apart))
    assert found["RouterReady"].holds
    assert not found["Available"].holds


def test_where_the_router_is_the_users_engines_alone_make_it_available() -> None:
    assert by_type(replace(without_pods(facts(), "router"), routed=False))["Available"].holds


def of_groups(*further: PodState) -> Facts:
    made = facts(spec=GROUPS)
    assert any(kind == "LeaderWorkerSet" for kind, _ in made.view.children)
    return with_pods(made, *further)


def test_an_engine_of_several_nodes_serves_by_its_leader() -> None:
    made = of_groups()
    (leader,) = (pod for pod in made.view.pods if pod.role == "decode")
    worker = pod(f"{leader.name}-1", "decode-worker", made.revision)
    whole = with_pods(made, worker)
    assert {name: by_type(whole)[name].status for name in ("Available", "DecodeReady")} == {
        "Available": "True", "DecodeReady": "True",
    }  # fmt: skip
    found = by_type(without_pods(whole, "decode"))
    assert (found["Available"].status, found["DecodeReady"].status) == ("False", "False")


def test_what_is_asked_to_stop_serves_until_its_pods_go() -> None:
    stopped = replace(facts(), suspended=True)
    assert by_type(stopped)["Available"].holds
    found = by_type(lost(stopped, "router", "on its way out"))
    assert (found["Available"].status, found["Available"].reason) == ("False", Reason.SUSPENDED)


def test_a_workload_that_is_being_deleted_takes_its_pods_along() -> None:
    made = facts()
    going = {
        identity: replace(child, deleting=child.role == "decode") for identity, child in made.view.children.items()
    }
    assert not by_type(replace(made, view=view(made.view.serving, going, *pods_of(going))))["Available"].holds


def test_a_store_whose_pod_is_gone_is_told_before_its_workload_counts_anew() -> None:
    made = facts(spec=STORED)
    assert by_type(made)["StorageReady"].holds
    found = by_type(without_pods(made, "store"))
    assert (found["StorageReady"].status, found["StorageReady"].reason) == ("False", Reason.L2_UNREACHABLE)
    assert found["Available"].holds


def test_the_status_says_so_with_the_first_look_after_the_pods_went() -> None:
    async def work() -> None:
        stage = Stage()
        await settle(stage)
        before = stage.status
        for gone in [lost.body["metadata"] for lost in stage.pods if lost.role == "decode"]:
            stage.store.remove_pod(KEY, gone["name"], gone["uid"], "999")
        await stage.reconciler.run(KEY)
        assert stage.condition("Available")[:2] == ("False", "Starting")
        assert stage.condition("Ready")[2].startswith("DecodeReady: 0 of 2 decode pods are ready")
        assert stage.status["roles"]["decode"]["summary"] == "0/2"
        assert (stage.status["revision"], stage.status.get("updatingRevision")) == (before["revision"], None)

    run(work)


def take(stage: Stage, role: str) -> str:
    """Let a pod of a role be deleted by force; return its name."""
    gone = next(pod for pod in stage.pods if pod.role == role)
    metadata = gone.body["metadata"]
    stage.pods.remove(gone)
    stage.store.remove_pod(KEY, metadata["name"], metadata["uid"], "999")
    return str(metadata["name"])


def test_a_pod_that_served_and_went_is_named_until_its_successor_serves() -> None:
    async def work() -> None:
        stage = Stage()
        await settle(stage)
        assert stage.condition("Ready")[0] == "True"
        name = take(stage, "decode")
        for _ in range(2):
            await stage.tick(1)
            for told, status in (("Ready", "False"), ("Degraded", "True"), ("Progressing", "True")):
                assert stage.condition(told)[:2] == (status, "PodLost"), told
                assert f"1 of 2 decode pods are ready: pod {name} was deleted, and not by" in stage.condition(told)[2]
            assert stage.condition("Stalled")[0] == "False"
        await settle(stage)
        assert (stage.condition("Ready")[0], stage.condition("Degraded")[0]) == ("True", "False")

    run(work)


def test_a_pod_that_the_operator_itself_replaces_is_not_told_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        stage = Stage()
        await settle(stage)
        uids = [pod.body["metadata"]["uid"] for pod in stage.pods if pod.role == "decode"]
        monkeypatch.setattr(stage.reconciler, "_replaced", lambda _: uids)
        take(stage, "decode")
        await stage.tick(1)
        assert stage.condition("DecodeReady")[:2] == ("False", "LoadingModel")

    run(work)


def test_pods_that_go_because_fewer_are_asked_for_or_another_revision_comes_are_not_lost() -> None:
    async def work() -> None:
        stage = Stage()
        await settle(stage)
        for spec in (
            {**SPEC, "decode": {"replicas": 1}},
            {**SPEC, "decode": {"replicas": 2}},
            {**SPEC, "decode": {"replicas": 2, "parallelism": {"tensor": 2}}},
        ):
            stage.change(spec)
            for _ in range(40):
                await stage.tick()
                assert "PodLost" not in {stage.condition(name)[1] for name in ("Ready", "Degraded", "DecodeReady")}
            assert stage.condition("Ready")[0] == "True"

    run(work)
