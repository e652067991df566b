"""The progress deadline: only time in which something could have been gained counts, and only gains end it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.control.rollout_stage import LABEL, Stage
from tests.control.test_rollouts import run, settle, spec


async def stuck(**more: Any) -> tuple[Stage, str]:
    """A rollout whose new engines never start, and the revision of these."""
    stage = Stage(spec=spec("0.32.0", **more), loads=1)
    await settle(stage)
    old = stage.revisions[0]
    stage.loads = 9
    stage.change(spec("0.33.0", **more))
    await stage.tick()
    new = next(r for r in stage.revisions if r != old)
    stage.stuck.add(new)
    for _ in range(3):
        await stage.tick()
    return stage, new


def failed(stage: Stage) -> bool:
    return stage.condition("Ready")[1] == "RolloutFailed"


async def ticks(stage: Stage, count: int, seconds: float = 300.0) -> None:
    for _ in range(count):
        await stage.tick(seconds)


def test_time_without_an_operator_does_not_count() -> None:
    async def work() -> None:
        stage, _ = await stuck()
        stage.clock += 7200
        stage.restart()
        await ticks(stage, 10)
        assert not failed(stage)
        await ticks(stage, 4)
        assert failed(stage)

    run(work)


@pytest.mark.parametrize("every", [1, 3, 10])
def test_an_operator_that_restarts_again_and_again_does_not_put_the_deadline_off(every: int) -> None:
    async def work() -> None:
        stage, _ = await stuck()
        for count in range(1, 14):
            await stage.tick(300)
            if count % every == 0:
                stage.clock += 60
                stage.restart()
                await stage.tick(1)
        assert failed(stage)

    run(work)


def test_a_pause_does_not_count_and_resumed_it_has_its_whole_time() -> None:
    async def work() -> None:
        stage, _ = await stuck()
        stage.change(spec("0.33.0", rollout={"paused": True}))
        await ticks(stage, 20, 600)
        writes = len(stage.api.writes)
        await ticks(stage, 20, 600)
        assert len(stage.api.writes) == writes, "a rollout at rest is written nothing of"
        stage.change(spec("0.33.0"))
        await ticks(stage, 11)
        assert not failed(stage)
        await ticks(stage, 4)
        assert failed(stage)

    run(work)


def test_another_attempt_has_its_whole_time() -> None:
    async def work() -> None:
        stage, _ = await stuck()
        await ticks(stage, 14)
        assert failed(stage)
        await ticks(stage, 5, 36_000)
        stage.change({**spec("0.33.0"), "monitoring": {"enabled": "disabled"}})
        await ticks(stage, 11)
        assert not failed(stage)
        await ticks(stage, 4)
        assert failed(stage)

    run(work)


def test_a_jump_of_the_clock_is_no_failure() -> None:
    async def work() -> None:
        stage, _ = await stuck()
        await stage.tick(7200)
        assert not failed(stage)

    run(work)


def test_a_rollout_that_waits_is_looked_at_at_least_every_five_minutes() -> None:
    async def work() -> None:
        stage, _ = await stuck()
        result = await stage.reconciler.run(next(iter(stage.store.keys)))
        assert result.again is not None
        assert result.again <= 300

    run(work)


def test_a_former_pod_that_flaps_does_not_put_the_deadline_off() -> None:
    async def work() -> None:
        stage, new = await stuck()
        for _ in range(14):
            pod = next(p for p in stage.pods if p.role == "decode" and p.revision != new)
            pod.loads = 1
            stage.tell(pod)
            await stage.tick(300)
        assert failed(stage)

    run(work)


def test_a_workload_that_cannot_be_made_fails_the_rollout_and_is_named() -> None:
    async def work() -> None:
        stage = Stage(spec=spec("0.32.0"), loads=1)
        await settle(stage)
        old = stage.revisions[0]
        marks = {f"{LABEL}/role": "x", f"{LABEL}/revision": "x"}
        name = "qwen-decode-594736b2"
        stage.api.put(
            "Deployment",
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"namespace": "prod", "name": name, "uid": "foreign", "labels": marks},
                "spec": {"replicas": 0, "template": {"metadata": {"labels": marks}, "spec": {}}},
            },
        )
        stage.change(spec("0.33.0"))
        await ticks(stage, 16)
        assert failed(stage)
        assert f"no progress for 3600 s: Deployment prod/{name} exists" in stage.condition("Ready")[2]
        assert stage.exposed() == {old}
        assert stage.capacity("decode") == 2

    run(work)
