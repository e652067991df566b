"""Rollouts that numbers of engines, or ``suspend``, stop in the middle."""

from __future__ import annotations

from typing import Any

import pytest
from tests.control.bodies import KEY, SPEC
from tests.control.rollout_stage import Stage
from tests.control.test_rollouts import ROLES, run, settle, spec

from kvserving_operator.control.observe import child_of


def scale(stage: Stage, count: int, *roles: str) -> None:
    """A scaler asks for ``count`` engines."""
    for role in roles or ROLES:
        known = stage.api.objects["KVServingRole", "prod", f"qwen-{role}"]
        body = stage.api.put("KVServingRole", {**known, "spec": {**known["spec"], "replicas": count}})
        stage.store.put_child(KEY, child_of(body, body["apiVersion"], "KVServingRole"))


def scaled(version: str) -> dict[str, Any]:
    number = {"autoscaling": {"min": 1, "max": 9, "via": "external"}}
    return {**SPEC, "engine": {"version": version}, "prefill": number, "decode": number}


@pytest.mark.parametrize("how", ["scaled", "decode scaled", "suspended", "restarted"])
def test_a_failure_holds_through_zero_and_back(how: str) -> None:
    async def work() -> None:
        stage = Stage(spec=scaled("0.32.0"))
        await settle(stage)
        old = stage.revisions[0]
        stage.change(scaled("0.33.0"))
        await stage.tick()
        stage.broken.update(r for r in stage.revisions if r != old)
        for _ in range(40):
            await stage.tick()
        for count in (0, 1):
            if how == "suspended":
                stage.change({**scaled("0.33.0"), "suspend": not count})
            else:
                scale(stage, count, *(("decode",) if how == "decode scaled" else ROLES))
            for _ in range(25):
                await stage.tick()
                assert stage.condition("Ready")[1] == "RolloutFailed"
                assert not stage.exposed() & stage.broken
            assert stage.existing("decode") <= 2 * count
            if how == "restarted":
                stage.restart()
        assert stage.exposed() == {old}
        assert (stage.capacity("prefill"), stage.capacity("decode")) == (1, 1)

    run(work)


@pytest.mark.parametrize("strategy", ["Paired", "Recreate"])
def test_a_spec_that_changes_while_suspended_gets_no_traffic_before_its_proof(strategy: str) -> None:
    async def work() -> None:
        rollout = {"strategy": strategy}
        stage = Stage(spec=spec("0.32.0", rollout=rollout))
        await settle(stage)
        old = stage.revisions[0]
        stage.change(spec("0.32.0", rollout=rollout, suspend=True))
        for _ in range(8):
            await stage.tick()
        stage.change(spec("0.33.0", rollout=rollout, suspend=True))
        for _ in range(8):
            await stage.tick(3000)
        assert stage.condition("Ready")[1] == "Suspended"
        assert stage.condition("Progressing")[:2] == ("False", "Suspended")
        new = next(r for r in stage.revisions if r != old)
        stage.broken.add(new)
        stage.change(spec("0.33.0", rollout=rollout))
        for _ in range(60):
            await stage.tick()
            assert new not in stage.exposed()
        assert stage.exposed() == {old}
        assert stage.condition("Ready")[1] == "RolloutFailed"
        assert stage.capacity("decode") == 2
        stage.broken.clear()
        stage.change({**spec("0.33.0", rollout=rollout), "monitoring": {"enabled": "disabled"}})
        await settle(stage)
        assert stage.revisions == [new]

    run(work)
