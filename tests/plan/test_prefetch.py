"""Weights that are kept are fetched before engines start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.plan.support import LOCAL, faults, pair, render

CACHE = {"cache": {"size": "100Gi"}}


def container(model: Mapping[str, Any], **spec: Any) -> Mapping[str, Any] | None:
    """The one that fetches, of prefill; decode's is the same."""
    made = render(pair(model=dict(model), **spec))
    first, second = (
        [c for c in engine.pod.get("initContainers", ()) if c["name"] == "prefetch"] for engine in made.engines
    )
    assert first == second
    return first[0] if first else None


def test_the_model_and_its_adapters_are_fetched_at_their_revision_into_the_cache() -> None:
    model = {"uri": "hf://a/b", "revision": "abc", "loras": [{"name": "sql", "uri": "hf://o/sql"}], **CACHE}
    found = container(model, router={"type": "vllm-router"})
    assert found is not None
    assert found["args"] == ["a/b@abc", "o/sql"]
    assert {"name": "model-cache", "mountPath": "/var/cache/kvserving/model"} in found["volumeMounts"]
    assert {"name": "HF_HOME", "value": "/var/cache/kvserving/model"} in found["env"]


def test_the_token_is_given_by_reference_and_the_users_variables_as_to_the_engine() -> None:
    mirror = {"name": "HF_ENDPOINT", "value": "https://hub.example.org"}
    found = container({"uri": "hf://a/b", "secretRef": "hub", **CACHE}, engine={"env": [mirror]})
    assert found is not None
    assert mirror in found["env"]
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}}
    assert token in found["env"]
    assert {"keys", "shm"}.isdisjoint(mount["name"] for mount in found["volumeMounts"])


@pytest.mark.parametrize(
    "model",
    [{"uri": "hf://a/b"}, {"uri": "s3://bucket/model", **CACHE}, {"uri": "pvc://weights/a"}],
    ids=["not kept", "streamed", "on a claim already"],
)
def test_nothing_is_fetched_that_is_not_kept(model: dict[str, Any]) -> None:
    assert container(model) is None


def test_a_baked_connector_fetches_as_well_and_one_machine_does_not() -> None:
    model = {"uri": "hf://a/b", **CACHE}
    baked = container(model, engine={"connector": "baked"})
    assert baked is not None
    assert "PYTHONPATH" not in {variable["name"] for variable in baked["env"]}
    assert "initContainers" not in render(pair(model=model), site=LOCAL).prefill.pod


def test_each_pod_of_an_engine_has_what_it_loads() -> None:
    made = render(pair(model={"uri": "hf://a/b", **CACHE}, decode={"nodes": 2, "parallelism": {"tensor": 2}}))
    names = [[c["name"] for c in e.pod["initContainers"]] for e in (made.decode, made.worker("decode"))]
    assert names == [["connector", "prefetch"]] * 2


def test_its_name_is_the_operators_where_it_is_made() -> None:
    template = {"spec": {"initContainers": [{"name": "prefetch", "image": "a"}]}}
    spec = pair(prefill={"template": template}, model={"uri": "hf://a/b", **CACHE})
    assert "the name prefetch is the operator's" in faults(spec)
    assert faults(pair(prefill={"template": template})) == ""
