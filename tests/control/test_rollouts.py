"""Rollouts through the whole reconciler, with Deployments and probes in memory; real ones in e2e/operator."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.control.bodies import SPEC
from tests.control.rollout_stage import Stage

ROLES = ("prefill", "decode")


def spec(version: str = "0.33.0", prefill: int = 2, decode: int = 2, **more: Any) -> dict[str, Any]:
    return {
        **SPEC,
        "engine": {"version": version},
        "prefill": {"replicas": prefill, **more.pop("prefill_more", {})},
        "decode": {"replicas": decode},
        **more,
    }


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


class Watcher:
    """Looks at every tick whether what a rollout promises holds."""

    def __init__(self, stage: Stage, *, wanted: int = 2, surge: int = 1, missing: int = 0) -> None:
        self.stage = stage
        self.most = wanted + surge
        self.least = wanted - missing

    def look(self) -> None:
        for role in ROLES:
            assert self.stage.capacity(role) >= self.least, f"{self.stage.capacity(role)} {role} pods serve"
            assert self.stage.existing(role) <= self.most, f"{self.stage.existing(role)} {role} pods exist"
        assert not self.stage.exposed() & self.stage.broken
        assert self.stage.mixed == []


async def settle(stage: Stage, *, ticks: int = 200) -> None:
    """Go on until the object is ready and nothing is written any more."""
    for _ in range(ticks):
        before = len(stage.api.writes)
        await stage.tick()
        done = stage.condition("Ready")[0] == "True" and stage.condition("Progressing")[0] == "False"
        if done and len(stage.api.writes) == before:
            return
    raise AssertionError(f"not ready after {ticks} ticks: {stage.condition('Ready')}\n{stage.status.get('rollout')}")


async def exchange(stage: Stage, watcher: Watcher, new: dict[str, Any], *, ticks: int = 300) -> None:
    """Change the spec and watch until only the new revision is left."""
    stage.change(new)
    for _ in range(ticks):
        await stage.tick()
        watcher.look()
        if len(stage.revisions) == 1 and len(stage.exposed()) == 1 and stage.condition("Ready")[0] == "True":
            return
    raise AssertionError(f"not exchanged: {stage.revisions} {stage.condition('Progressing')}")


def test_a_first_revision_starts_at_once_and_its_routers_are_made_once() -> None:
    async def work() -> None:
        stage = Stage(spec=spec())
        await stage.tick()
        assert (stage.existing("prefill"), stage.existing("decode")) == (2, 2)
        await settle(stage)
        assert "rollout" not in stage.status
        assert sum(kind == "Deployment" for verb, kind, _ in stage.api.writes if verb == "apply") == 3

    run(work)


@pytest.mark.parametrize("drains", [0, 2, 7])
def test_another_engine_replaces_the_former_one_within_the_budget(drains: int) -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0"), drains=drains)
        await settle(stage)
        await exchange(stage, Watcher(stage), spec("0.33.0"))
        await settle(stage)
        assert "rollout" not in stage.status

    run(work)


def test_one_pair_is_replaced_without_a_gap() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0", 1, 1))
        await settle(stage)
        await exchange(stage, Watcher(stage, wanted=1), spec("0.33.0", 1, 1))

    run(work)


def test_without_surge_pairs_are_replaced_one_by_one() -> None:
    async def work() -> None:
        rollout = {"maxSurge": 0, "maxUnavailable": 1}
        stage = Stage(spec=spec("0.32.0", 3, 3, rollout=rollout))
        await settle(stage)
        await exchange(stage, Watcher(stage, wanted=3, surge=0, missing=1), spec("0.33.0", 3, 3, rollout=rollout))

    run(work)


def test_recreate_stops_the_former_revision_before_it_starts_the_next() -> None:
    async def work() -> None:
        rollout = {"strategy": "Recreate"}
        stage = Stage(spec=spec("0.32.0", rollout=rollout))
        await settle(stage)
        await exchange(stage, Watcher(stage, surge=0, missing=2), spec("0.33.0", rollout=rollout))

    run(work)


def test_a_rollout_is_not_over_while_nothing_serves() -> None:
    async def work() -> None:
        rollout = {"strategy": "Recreate"}
        stage = Stage(spec=spec("0.32.0", rollout=rollout))
        await settle(stage)
        (old,) = stage.revisions
        stage.change(spec("0.33.0", rollout=rollout))
        told = []
        for _ in range(40):
            await stage.tick()
            told.append(
                (stage.condition("Available")[0], stage.status["revision"], stage.status.get("updatingRevision"))
            )
        new = stage.status["revision"]
        assert new != old
        assert list(dict.fromkeys(told)) == [("True", old, new), ("False", old, new), ("True", new, None)]

    run(work)


def test_a_revision_whose_transfer_fails_gets_no_traffic_and_says_why() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0"))
        await settle(stage)
        old = stage.revisions[0]
        stage.change(spec("0.33.0"))
        await stage.tick()
        new = next(r for r in stage.revisions if r != old)
        stage.broken.add(new)
        watcher = Watcher(stage)
        for _ in range(60):
            await stage.tick()
            watcher.look()
        assert stage.exposed() == {old}
        assert stage.condition("Ready")[:2] == ("False", "RolloutFailed")
        assert stage.condition("Available")[0] == "True"
        assert stage.condition("Stalled")[:2] == ("True", "RolloutFailed")
        assert "RecomputingKV" in stage.condition("Degraded")[2]
        assert stage.status["rollout"]["failed"]["revision"] == new
        assert stage.status["revision"] == old
        stage.change(spec("0.32.0"))
        for _ in range(60):
            await stage.tick()
            watcher.look()
        await settle(stage)
        assert stage.revisions == [old]

    run(work)


def test_a_failed_rollout_stays_failed_over_a_restart_and_a_later_success() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0"))
        await settle(stage)
        old = stage.revisions[0]
        stage.change(spec("0.33.0"))
        await stage.tick()
        stage.broken.add(next(r for r in stage.revisions if r != old))
        for _ in range(40):
            await stage.tick()
        assert stage.condition("Ready")[1] == "RolloutFailed"
        stage.broken.clear()
        stage.restart()
        for _ in range(40):
            await stage.tick()
            assert stage.exposed() == {old}
        assert stage.condition("Ready")[1] == "RolloutFailed"
        stage.change({**spec("0.33.0"), "monitoring": {"enabled": "disabled"}})
        for _ in range(60):
            await stage.tick()
        await settle(stage)
        assert stage.revisions != [old]

    run(work)


def test_a_change_of_the_spec_tries_a_failed_revision_anew() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0"))
        await settle(stage)
        stage.change(spec("0.33.0"))
        await stage.tick()
        stage.broken.add(next(r for r in stage.revisions if r != stage.status["revision"]))
        for _ in range(30):
            await stage.tick()
        assert stage.condition("Ready")[1] == "RolloutFailed"
        stage.broken.clear()
        stage.change({**spec("0.33.0"), "monitoring": {"enabled": "disabled"}})
        for _ in range(40):
            await stage.tick()
        await settle(stage)
        assert len(stage.revisions) == 1

    run(work)


def test_pods_that_never_get_ready_fail_the_rollout_at_its_deadline() -> None:
    async def work() -> None:
        limits = {"startupTimeout": "60s", "drainTimeout": "10s"}
        base = spec("0.32.0", prefill_more=limits, rollout={"progressDeadline": "2m"})
        base["decode"] = {**base["decode"], **limits}
        stage = Stage(spec=base)
        await settle(stage)
        old = stage.revisions[0]
        stage.change({**base, "engine": {"version": "0.33.0"}})
        await stage.tick()
        stage.stuck.add(next(r for r in stage.revisions if r != old))
        watcher = Watcher(stage)
        for _ in range(60):
            await stage.tick()
            watcher.look()
        assert stage.condition("Ready")[1] == "RolloutFailed"
        assert "no progress for 120 s" in stage.condition("Stalled")[2]
        assert stage.exposed() == {old}

    run(work)


def test_a_paused_rollout_waits_and_goes_on() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0"))
        await settle(stage)
        old = stage.revisions[0]
        stage.change(spec("0.33.0", rollout={"paused": True}))
        for _ in range(20):
            await stage.tick()
        assert stage.exposed() == {old}
        assert stage.status["rollout"]["phase"] == "Paused"
        assert "spec.rollout.paused" in stage.condition("Progressing")[2]
        await exchange(stage, Watcher(stage), spec("0.33.0"))

    run(work)


def test_a_set_that_is_proved_while_the_rollout_is_paused_is_not_what_ready_means() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0", 1, 1))
        await settle(stage)
        old = stage.revisions[0]
        stage.change(spec("0.33.0", 1, 1))
        while len(stage.revisions) < 2 or len(stage.status["rollout"]["sets"]) < 2:
            await stage.tick()
        stage.change(spec("0.33.0", 1, 1, rollout={"paused": True}))
        for _ in range(40):
            await stage.tick()
        assert stage.exposed() == {old}
        assert [known["verification"] for known in stage.status["rollout"]["sets"]] == ["verified", "verified"]
        assert stage.condition("PrefillReady")[0] == stage.condition("DecodeReady")[0] == "True"
        assert stage.condition("Ready")[:2] == ("False", "RollingOut")

    run(work)


@pytest.mark.parametrize("at", range(0, 24, 3))
def test_an_operator_that_is_replaced_in_the_middle_goes_on(at: int) -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0"))
        await settle(stage)
        watcher = Watcher(stage)
        stage.change(spec("0.33.0"))
        for _ in range(at):
            await stage.tick()
            watcher.look()
        stage.restart()
        await exchange(stage, watcher, spec("0.33.0"))
        await settle(stage)

    run(work)


def test_a_third_revision_replaces_two_that_share_the_traffic() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.31.0"))
        await settle(stage)
        watcher = Watcher(stage)
        stage.change(spec("0.32.0"))
        for _ in range(40):
            await stage.tick()
            watcher.look()
            if len(stage.exposed()) == 2:
                break
        else:
            raise AssertionError("the revisions never shared the traffic")
        await exchange(stage, watcher, spec("0.33.0"))

    run(work)


def test_numbers_follow_the_spec_up_and_down_while_pods_still_drain() -> None:
    async def work() -> None:
        stage = Stage(spec=spec(prefill=1, decode=3), drains=50)
        await settle(stage)
        stage.change(spec(prefill=1, decode=1))
        for _ in range(5):
            await stage.tick()
        assert stage.capacity("decode") == 1
        stage.change(spec(prefill=1, decode=4))
        for _ in range(8):
            await stage.tick()
        assert stage.capacity("decode") == 4, "pods that drain hold nobody up"

    run(work)


def test_engines_scaled_to_none_and_back_converge() -> None:
    async def work() -> None:
        stage = Stage(spec=spec(prefill=1, decode=4))
        await settle(stage)
        stage.change(spec(prefill=1, decode=0))
        for _ in range(20):
            await stage.tick()
        assert stage.existing("decode") == 0
        stage.change(spec(prefill=1, decode=4))
        await settle(stage)
        assert stage.capacity("decode") == 4

    run(work)


def test_a_stable_object_is_left_alone() -> None:
    async def work() -> None:
        stage = Stage(spec=spec())
        await settle(stage)
        before = len(stage.api.writes)
        for _ in range(20):
            await stage.tick()
        assert stage.api.writes[before:] == []

    run(work)


def test_former_specs_stay_for_undo_and_the_oldest_go() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.29.0"))
        await settle(stage)
        for version in ("0.30.0", "0.31.0", "0.32.0", "0.33.0", "0.32.0"):
            stage.change(spec(version))
            await settle(stage)
        kept = [json.loads(b["data"]["spec.json"]) for (k, _, n), b in stage.api.objects.items() if "-spec-" in n]
        assert sorted(s["engine"]["version"] for s in kept) == ["0.30.0", "0.31.0", "0.32.0", "0.33.0"]
        assert spec("0.33.0") in kept

    run(work)


def test_beside_a_failed_revision_the_former_one_gets_the_numbers_that_are_asked_for_now() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0"))
        await settle(stage)
        old = stage.revisions[0]
        stage.change(spec("0.33.0", 2, 3))
        await stage.tick()
        stage.broken.add(next(r for r in stage.revisions if r != old))
        for _ in range(40):
            await stage.tick()
        assert stage.condition("Ready")[1] == "RolloutFailed"
        assert stage.capacity("decode") == 3

    run(work)


def test_while_the_former_revision_serves_a_rollout_is_no_outage() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0"), loads=6)
        await settle(stage)
        stage.change(spec("0.33.0"))
        told = set()
        for _ in range(60):
            await stage.tick()
            told.add(stage.condition("Ready")[1])
            assert stage.condition("Available")[0] == "True"
        assert told <= {"RollingOut", "Ready"}

    run(work)
