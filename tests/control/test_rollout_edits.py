"""Hands on the children and pods of a rollout: what a set is comes from what nobody can edit."""

from __future__ import annotations

import pytest
from tests.control.rollout_stage import Stage
from tests.control.test_rollouts import Watcher, exchange, run, settle, spec

WORKLOADS = ("prefill", "decode", "router")


@pytest.mark.parametrize("role", WORKLOADS)
@pytest.mark.parametrize("label", ["revision", "role", "name"])
def test_an_edited_label_of_a_workload_is_put_back_and_its_pods_stay(role: str, label: str) -> None:
    async def work() -> None:
        stage = Stage(spec=spec(), drains=3)
        await settle(stage)
        before, pods = stage.workload_labels(), [id(pod) for pod in stage.pods]
        stage.relabel(role, label, "x")
        assert stage.workload_labels() != before
        for _ in range(5):
            await stage.tick()
            assert [id(pod) for pod in stage.pods] == pods
            assert stage.status.get("rollout") is None
        assert stage.workload_labels() == before
        assert stage.condition("Ready")[0] == "True"

    run(work)


@pytest.mark.parametrize("role", WORKLOADS)
@pytest.mark.parametrize("label", ["revision", "role"])
def test_an_edited_label_of_the_former_set_is_put_back_and_the_rollout_goes_on(role: str, label: str) -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0"), loads=4)
        await settle(stage)
        before, watcher = stage.workload_labels(), Watcher(stage)
        stage.change(spec("0.33.0"))
        await stage.tick()
        watcher.look()
        stage.relabel(role, label, "x", former=True)
        await stage.tick()
        watcher.look()
        assert before.items() <= stage.workload_labels().items()
        await exchange(stage, watcher, spec("0.33.0"))
        await settle(stage)

    run(work)


def test_groups_of_several_nodes_are_known_by_their_leaders_labels() -> None:
    async def work() -> None:
        stage = Stage(spec=spec(prefill=1, decode=1, prefill_more={"nodes": 2}))
        await settle(stage)
        before, pods = stage.workload_labels(), [id(pod) for pod in stage.pods]
        stage.relabel("prefill", "revision", "x")
        for _ in range(4):
            await stage.tick()
            assert [id(pod) for pod in stage.pods] == pods
        assert stage.workload_labels() == before

    run(work)


@pytest.mark.parametrize("strategy", ["Paired", "Recreate"])
def test_a_pod_that_was_put_aside_is_no_set(strategy: str) -> None:
    async def work() -> None:
        rollout = {"strategy": strategy}
        stage = Stage(spec=spec(rollout=rollout))
        await settle(stage)
        stage.put_aside("decode")
        for _ in range(20):
            await stage.tick(600)
            assert stage.status.get("rollout") is None
        assert stage.condition("Ready")[0] == "True"
        stage.change(spec(decode=4, rollout=rollout))
        await settle(stage)
        assert stage.existing("decode") == 5, "four, and the one aside"

    run(work)


def test_a_pod_that_ends_in_time_is_not_named_for_deletion() -> None:
    async def work() -> None:
        rollout = {"strategy": "Recreate"}
        stage = Stage(spec=spec("0.32.0", 1, 1, rollout=rollout), drains=4, grace=3600)
        await settle(stage)
        stage.change(spec("0.33.0", 1, 1, rollout=rollout))
        await stage.tick()
        await stage.tick()
        assert any(pod.leaving for pod in stage.pods)
        told = stage.condition("Ready")[2]
        assert "finish their requests" in told
        assert "--force" not in told
        await settle(stage)

    run(work)


def test_a_pod_that_never_ends_is_named_with_the_way_out() -> None:
    async def work() -> None:
        rollout = {"strategy": "Recreate"}
        stage = Stage(spec=spec("0.32.0", 1, 1, rollout=rollout), drains=10**9)
        await settle(stage)
        stage.change(spec("0.33.0", 1, 1, rollout=rollout))
        for _ in range(16):
            await stage.tick(300)
        lost = next(pod.body["metadata"]["name"] for pod in stage.pods if pod.leaving)
        assert stage.condition("Ready")[1] == "RolloutFailed"
        assert f"kubectl delete pod {lost} --force" in stage.condition("Ready")[2]

    run(work)
