"""What pods need of Secrets, as the templates of their workloads say it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import pair, render

from kvserving_operator.plan.secret_refs import SecretNeed, needed

Json = dict[str, Any]


def deployment(**pod: Any) -> Json:
    return {"kind": "Deployment", "spec": {"template": {"spec": pod}}}


def environment(**reference: Any) -> list[Json]:
    return [{"name": "c", "env": [{"name": "V", "valueFrom": {"secretKeyRef": reference}}]}]


def projected(**source: Any) -> list[Json]:
    return [{"name": "v", "projected": {"sources": [{"secret": source}]}}]


@pytest.mark.parametrize(
    ("pod", "keys"),
    [
        ({"containers": environment(name="s", key="k")}, {"k"}),
        ({"initContainers": environment(name="s", key="k")}, {"k"}),
        ({"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s"}}]}]}, set()),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, set()),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "p"}]}}]}, {"k"}),
        ({"volumes": projected(name="s")}, set()),
        ({"volumes": projected(name="s", items=[{"key": "k", "path": "p"}])}, {"k"}),
    ],
)
def test_pods_start_with_the_secrets_of_their_environment_and_volumes(pod: Json, keys: set[str]) -> None:
    assert needed([deployment(**pod)]) == {"s": SecretNeed(frozenset(keys))}


@pytest.mark.parametrize(
    "pod",
    [
        {"containers": environment(name="s", key="k", optional=True)},
        {"containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s", "optional": True}}]}]},
        {"volumes": [{"name": "v", "secret": {"secretName": "s", "optional": True}}]},
        {"volumes": projected(name="s", items=[{"key": "k"}], optional=True)},
    ],
)
def test_what_is_optional_is_not_needed(pod: Json) -> None:
    assert needed([deployment(**pod)]) == {}


def test_images_are_pulled_with_a_secret_that_pods_can_start_without() -> None:
    found = needed([deployment(imagePullSecrets=[{"name": "s"}])])
    assert found == {"s": SecretNeed(frozenset({".dockerconfigjson"}), starts=False, pulls=True)}


def test_what_several_pods_need_of_one_secret_is_needed_together() -> None:
    whole = deployment(volumes=[{"name": "v", "secret": {"secretName": "s"}}], imagePullSecrets=[{"name": "s"}])
    assert needed([whole, deployment(containers=environment(name="s", key="k"))]) == {
        "s": SecretNeed(frozenset({".dockerconfigjson", "k"}), pulls=True)
    }


def test_leaders_and_workers_of_a_group_are_both_looked_at() -> None:
    parts = {
        f"{part}Template": {"spec": {"containers": environment(name=f"of-{part}", key="k")}}
        for part in ("leader", "worker")
    }
    groups = {"kind": "LeaderWorkerSet", "spec": {"leaderWorkerTemplate": {"size": 2, **parts}}}
    assert list(needed([groups])) == ["of-leader", "of-worker"]


def test_a_plan_of_engines_that_span_nodes_needs_what_its_object_names() -> None:
    spec = pair(decode={"nodes": 2, "parallelism": {"tensor": 4}})
    made = render({**spec, "model": {"uri": "hf://Qwen/Qwen3-8B", "secretRef": "hub"}})
    assert needed(made.all("LeaderWorkerSet"))["hub"] == SecretNeed(frozenset({"HF_TOKEN"}))
