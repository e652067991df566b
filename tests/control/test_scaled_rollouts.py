"""Roles that are scaled, in a rollout: the surge never becomes the number that is asked for."""

from __future__ import annotations

import pytest
from tests.control.bodies import KEY, SPEC
from tests.control.rollout_stage import Json, Stage
from tests.control.test_rollouts import Watcher, run

from kvserving_operator.api.v1alpha1 import API_VERSION

ROLE = "KVServingRole"
ROLES = ("prefill", "decode")
SCALED: Json = {"autoscaling": {"min": 1, "max": 9, "via": "external"}}
FIXED: Json = {"replicas": 3}
MOMENTS = (1, 6, 12, 17)
"""Ticks after the change of the engine; the rollout needs more than these."""


def spec(version: str, role: Json = SCALED) -> Json:
    return {**SPEC, "engine": {"version": version}, "prefill": role, "decode": role}


def lacking(stage: Stage) -> None:
    """The cluster has no kind for scale targets."""
    stage.applier.absent = frozenset({(API_VERSION, ROLE)})


def delete(stage: Stage, role: str) -> None:
    """Somebody deletes a scale target, and the watch tells."""
    gone = stage.api.objects.pop((ROLE, "prod", f"qwen-{role}"))["metadata"]
    stage.store.remove_child(KEY, ROLE, gone["name"], gone["uid"], str(10**9))


def numbers(stage: Stage) -> list[int]:
    """What the scale targets ask for."""
    return [stage.api.objects[ROLE, "prod", f"qwen-{role}"]["spec"]["replicas"] for role in ROLES]


async def until_one_is_left(stage: Stage, watcher: Watcher) -> None:
    """Go on until one revision serves, with the engines that there were before."""
    for _ in range(100):
        await stage.tick()
        watcher.look()
        if len(stage.revisions) == 1 and stage.exposed() == set(stage.revisions):
            break
    await stage.tick()
    assert len(stage.revisions) == 1
    assert [stage.existing(role) for role in ROLES] == [stage.capacity(role) for role in ROLES] == [3, 3]


async def three_engines(role: Json, *, kind: bool = True) -> Stage:
    """Three engines of each role, which ``role`` describes from then on."""
    stage = Stage(spec=spec("0.32.0", FIXED), loads=1)
    if not kind:
        lacking(stage)
    for change in (FIXED, role):
        stage.change(spec("0.32.0", change))
        for _ in range(10):
            await stage.tick()
    assert [stage.capacity(role) for role in ROLES] == [3, 3]
    return stage


@pytest.mark.parametrize("restarted_at", [None, *MOMENTS])
def test_without_the_kind_a_rollout_leaves_as_many_engines_as_there_were(restarted_at: int | None) -> None:
    async def work() -> None:
        stage = await three_engines(SCALED, kind=False)
        watcher = Watcher(stage, wanted=3)
        stage.change(spec("0.33.0"))
        for at in range(MOMENTS[-1] + 1):
            if at == restarted_at:
                stage.restart()
                lacking(stage)
            await stage.tick()
            watcher.look()
        assert len(stage.revisions) == 2
        await until_one_is_left(stage, watcher)

    run(work)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("at", MOMENTS)
def test_a_scale_target_deleted_in_a_rollout_is_made_again_with_what_was_asked_for(at: int, restarted: bool) -> None:
    async def work() -> None:
        stage = await three_engines(SCALED)
        watcher = Watcher(stage, wanted=3)
        stage.change(spec("0.33.0"))
        for _ in range(at):
            await stage.tick()
            watcher.look()
        for role in ROLES:
            delete(stage, role)
        if restarted:
            stage.restart()
        await stage.tick()
        assert numbers(stage) == [3, 3]
        await until_one_is_left(stage, watcher)

    run(work)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("at", MOMENTS)
def test_autoscaling_switched_on_in_a_rollout_starts_with_the_fixed_number(at: int, restarted: bool) -> None:
    async def work() -> None:
        stage = await three_engines(FIXED)
        watcher = Watcher(stage, wanted=3)
        stage.change(spec("0.33.0", FIXED))
        for _ in range(at):
            await stage.tick()
            watcher.look()
        stage.change(spec("0.33.0"))
        if restarted:
            stage.restart()
        await stage.tick()
        assert numbers(stage) == [3, 3]
        await until_one_is_left(stage, watcher)

    run(work)


@pytest.mark.parametrize("at", MOMENTS)
def test_a_spec_that_cannot_be_planned_for_a_while_does_not_change_the_number(at: int) -> None:
    async def work() -> None:
        stage = await three_engines(SCALED, kind=False)
        watcher = Watcher(stage, wanted=3)
        stage.change(spec("0.33.0"))
        for _ in range(at):
            await stage.tick()
            watcher.look()
        stage.change({**spec("0.33.0"), "model": {}})
        for _ in range(5):
            await stage.tick()
        assert stage.condition("Ready")[1] == "InvalidSpec"
        assert [stage.status["roles"][role]["replicas"] for role in ROLES] == [3, 3]
        stage.change(spec("0.33.0"))
        await until_one_is_left(stage, watcher)

    run(work)


@pytest.mark.parametrize("at", MOMENTS)
def test_without_a_status_no_number_is_above_the_one_that_was_asked_for(at: int) -> None:
    """Backups keep no status, and one set alone may have fewer engines than both."""

    async def work() -> None:
        stage = await three_engines(SCALED)
        stage.change(spec("0.33.0"))
        for _ in range(at):
            await stage.tick()
        for role in ROLES:
            delete(stage, role)
        stage.api.objects["KVServing", "prod", "qwen"]["status"] = {}
        stage.restart()
        await stage.tick()
        assert all(1 <= number <= 3 for number in numbers(stage))
        for _ in range(30):
            await stage.tick()
        assert len(stage.revisions) == 1
        assert numbers(stage) == [stage.existing(role) for role in ROLES]

    run(work)
