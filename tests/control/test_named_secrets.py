"""Secrets of the user's that pods cannot start without: found in the plan, and told where they are missing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.control.bodies import KEY, SPEC, planned, pod, stored
from tests.control.test_reconcile import Stage

from kvserving_operator.control.apply import Outcome
from kvserving_operator.control.named_secrets import awaited, of_users
from kvserving_operator.control.permissions import SERVING
from kvserving_operator.plan.secret_refs import SecretNeed
from kvserving_operator.plan.types import GeneratedSecret
from kvserving_operator.reasons import Reason

NAMING: dict[str, Any] = {
    **SPEC,
    "model": {"uri": "hf://Qwen/Qwen3-8B", "secretRef": "hub"},
    "router": {"apiKeySecretRef": "clients"},
    "cache": {"l2": {"type": "external", "url": "redis://store:6379", "secretRef": "store"}},
}


def test_the_secrets_of_a_plan_are_those_that_its_pods_cannot_start_without() -> None:
    plan = planned(stored(NAMING)).plan
    assert plan is not None
    assert of_users(plan) == {
        "clients": SecretNeed(frozenset({"api-key"})),
        "hub": SecretNeed(frozenset({"HF_TOKEN"})),
        "store": SecretNeed(frozenset({"password"})),
    }


def with_router(stage: Stage, reason: str) -> dict[str, Any]:
    """Let a router be at ``reason`` and reconcile; return the conditions by type."""
    return with_pod(stage, reason, "router", {**SPEC, "router": {"apiKeySecretRef": "clients"}})


def with_decode(stage: Stage, reason: str, **template: Any) -> dict[str, Any]:
    """Let a decode engine, with ``template`` for its pods, be at ``reason``; return the condition of its role."""
    spec = {**SPEC, "decode": {**SPEC["decode"], "template": {"spec": template}}}
    found: dict[str, Any] = with_pod(stage, reason, "decode", spec)["DecodeReady"]
    return found


def with_pod(stage: Stage, reason: str, role: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Let a pod of ``role`` be at ``reason`` and reconcile; return the conditions by type."""
    stage.body = {**stage.body, "spec": spec}
    stage.store.put_serving(_serving(stage))
    plan = planned(_serving(stage)).plan
    assert plan is not None
    stage.store.put_pod(KEY, pod(f"qwen-{role}-x-1", role, plan.revision, ready=False, **at(role, reason)))
    stage.run()
    stored_now = asyncio.run(stage.api.get(SERVING, "prod", "qwen"))
    assert stored_now is not None
    return {condition["type"]: condition for condition in stored_now["status"]["conditions"]}


def at(container: str, reason: str) -> dict[str, Any]:
    """The status of a pod whose container waits for ``reason``."""
    return {"containerStatuses": [{"name": container, "ready": False, "state": {"waiting": {"reason": reason}}}]}


def _serving(stage: Stage) -> Any:
    from kvserving_operator.control.observe import serving_of

    return serving_of(stage.api.put("KVServing", stage.body))


@pytest.mark.parametrize("reason", ["ContainerCreating", "CreateContainerConfigError"])
def test_a_secret_that_is_missing_is_told_with_its_field(reason: str) -> None:
    found = with_router(Stage(), reason)["RouterReady"]
    assert found["reason"] == Reason.SECRET_MISSING
    assert found["message"] == (
        "Secret prod/clients (spec.router.apiKeySecretRef) is not there: create it with api-key"
    )


def test_a_secret_that_lacks_a_key_is_told_with_the_key() -> None:
    stage = Stage()
    stage.api.put("Secret", {"metadata": {"namespace": "prod", "name": "clients"}, "data": {"other": ""}})
    found = with_router(stage, "ContainerCreating")["RouterReady"]
    assert found["message"] == "Secret prod/clients (spec.router.apiKeySecretRef) lacks api-key: add it"


def test_a_secret_that_is_there_is_no_problem() -> None:
    stage = Stage()
    stage.api.put("Secret", {"metadata": {"namespace": "prod", "name": "clients"}, "data": {"api-key": ""}})
    assert with_router(stage, "ContainerCreating")["RouterReady"]["reason"] == Reason.STARTING


REGISTRY = [{"name": "registry"}]


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
def test_a_pull_secret_that_is_missing_is_told_where_no_image_is_had(reason: str) -> None:
    found = with_decode(Stage(), reason, imagePullSecrets=REGISTRY)
    assert (found["reason"], found["message"]) == (
        Reason.SECRET_MISSING,
        "Secret prod/registry (named by a pod's imagePullSecrets) is not there: create it with .dockerconfigjson",
    )


def test_a_pull_secret_that_is_there_leaves_the_registry_s_answer() -> None:
    stage = Stage()
    made = {"metadata": {"namespace": "prod", "name": "registry"}, "data": {".dockerconfigjson": ""}}
    stage.api.put("Secret", made)
    assert with_decode(stage, "ErrImagePull", imagePullSecrets=REGISTRY)["reason"] != Reason.SECRET_MISSING


def test_a_pull_secret_that_is_missing_is_no_problem_while_images_are_had_without_it() -> None:
    found = with_decode(Stage(), "ContainerCreating", imagePullSecrets=REGISTRY)
    assert found["reason"] == Reason.STARTING


def test_a_whole_volume_whose_secret_is_missing_is_told_without_a_key() -> None:
    volume = {"name": "certificates", "secret": {"secretName": "tls"}}
    found = with_decode(Stage(), "ContainerCreating", volumes=[volume])
    assert found["message"] == "Secret prod/tls (named by a pod's environment or volumes) is not there: create it"


def test_pods_that_are_deleted_wait_for_no_secret() -> None:
    decode = {**SPEC["decode"], "template": {"spec": {"imagePullSecrets": REGISTRY}}}
    plan = planned(stored({**SPEC, "router": {"apiKeySecretRef": "clients"}, "decode": decode})).plan
    assert plan is not None
    held = pod("a-1", "decode", "r", **at("engine", "ContainerCreating"))
    unpulled = pod("a-2", "decode", "r", **at("engine", "ErrImagePull"))
    assert list(awaited(plan, [held])) == ["clients"]
    assert list(awaited(plan, [unpulled])) == ["registry"]
    assert awaited(plan, [replace(held, deleting=True), replace(unpulled, deleting=True)]) == {}


def test_a_key_of_the_operators_that_was_deleted_is_made_again_and_told() -> None:
    stage = Stage()
    stage.run()
    woken: list[Any] = []
    asyncio.run(stage.secrets.look(woken.append))
    assert woken == []
    del stage.api.objects["Secret", "prod", "qwen-keys"]
    asyncio.run(stage.secrets.look(woken.append))
    assert woken == [KEY]
    stage.run()
    assert ("Secret", "prod", "qwen-keys") in stage.api.objects
    events = [body for (kind, _, _), body in stage.api.objects.items() if kind == "Event"]
    [told] = [event for event in events if event["reason"] == "SecretRemade"]
    assert told["message"].startswith("qwen-keys: it was gone and is made anew")


def test_a_key_that_is_made_the_first_time_is_no_event() -> None:
    stage = Stage()
    stage.run()
    assert [name for verb, kind, name in stage.api.writes if kind == "Event"] == []


def test_many_objects_make_no_burst_of_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    stage = Stage()
    stage.run()
    serving = _serving(stage)
    wanted = tuple(GeneratedSecret(f"keys-{number}", {"signing": 32}) for number in range(4))
    asyncio.run(stage.secrets.ensure(serving, wanted, Outcome()))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    woken: list[Any] = []
    asyncio.run(stage.secrets.look(woken.append))
    assert slept == [0.1] * len(wanted), "between five Secrets"
