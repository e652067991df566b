"""Rollouts of engines that span nodes: groups of pods in place of single ones."""

from __future__ import annotations

from typing import Any

import pytest
from tests.control.rollout_stage import Stage
from tests.control.test_rollouts import Watcher, exchange, run, settle, spec

SPAN = {"nodes": 2, "parallelism": {"tensor": 4}}


def spanning(version: str, prefill: int = 2, decode: int = 2) -> dict[str, Any]:
    made = spec(version, prefill, decode, prefill_more=SPAN)
    made["decode"] |= SPAN
    return made


@pytest.mark.parametrize("drains", [0, 2, 7])
def test_engines_of_several_nodes_are_exchanged_within_the_same_budget(drains: int) -> None:
    async def work() -> None:
        stage = Stage(spec=spanning("0.32.0"), drains=drains)
        await settle(stage)
        assert stage.existing("prefill-worker") == 2
        assert {kind for kind, _, _ in stage.api.objects} >= {"LeaderWorkerSet"}
        await exchange(stage, Watcher(stage), spanning("0.33.0"))
        await settle(stage)
        assert (stage.existing("decode"), stage.existing("decode-worker")) == (2, 2)

    run(work)


def test_an_engine_gets_further_nodes_as_another_revision_while_the_former_serves() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.33.0"))
        await settle(stage)
        await exchange(stage, Watcher(stage), spanning("0.33.0"))
        await settle(stage)
        await exchange(stage, Watcher(stage), spec("0.33.0"))

    run(work)


def test_groups_are_scaled_by_the_number_of_engines() -> None:
    async def work() -> None:
        stage = Stage(spec=spanning("0.33.0"))
        await settle(stage)
        for engines in (3, 1):
            stage.change(spanning("0.33.0", prefill=engines, decode=engines))
            await settle(stage)
            assert {stage.existing(role) for role in ("prefill", "prefill-worker", "decode")} == {engines}
            assert f"{engines} of {engines} decode pods are ready" in stage.condition("DecodeReady")[2]

    run(work)


def test_a_cluster_without_leader_worker_sets_is_told_what_to_do() -> None:
    async def work() -> None:
        stage = Stage(spec=spanning("0.33.0"))
        stage.applier.absent = frozenset({("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")})
        for _ in range(5):
            await stage.tick()
        assert not any(kind == "LeaderWorkerSet" for _, kind, _ in stage.api.writes)
        for name in ("PrefillReady", "Ready"):
            status, reason, message = stage.condition(name)
            assert (status, reason) == ("False", "KindMissing")
            assert "install LeaderWorkerSet, or set spec.prefill.nodes to 1" in message
        assert stage.condition("Stalled")[:2] == ("True", "KindMissing")
        assert stage.condition("Reconciling")[0] == "False"

    run(work)
