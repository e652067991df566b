"""A default that the page tells is the one by which the plan goes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.plan.fields import leaves
from tests.plan.support import Rendered, edited, pair, render, serving

from kvserving_operator.api import schema
from kvserving_operator.api.types import Duration
from kvserving_operator.api.v1alpha1 import KVServingSpec, KVServingStatus
from kvserving_operator.plan.planning import plan
from kvserving_operator.plan.types import Plan
from kvserving_operator.reference import fields

GROUPS = fields.groups(schema.object_schema(), {"spec": KVServingSpec, "status": KVServingStatus})
DEFAULTS = {
    f"{path.removeprefix('spec').removeprefix('.')}.{field.name}".removeprefix("."): field.default.strip("`")
    for group in GROUPS
    for path in group.paths
    for field in fields.fields(group, GROUPS)
    if field.default.startswith("`")
}
"""Default of each field of the spec that is a plain value, by its path."""

# What must be there for a field to be.
AROUND: dict[str, dict[str, Any]] = {
    "cache.l1": {"size": "64Gi"},
    "cache.l2": {"size": "64Gi"},
    "prefill.autoscaling": {"max": 4},
    "decode.autoscaling": {"max": 4},
    "router.gateway": {"parentRefs": [{"name": "public"}]},
    "scheduling.colocate": {"topologyKey": "zone"},
}


def minimal(path: str = "") -> dict[str, Any]:
    """The least object that can have the field at ``path``."""
    spec: dict[str, Any] = {"prefill": {}, "decode": {}}
    for around, section in AROUND.items():
        if path.startswith(f"{around}."):
            spec = edited(spec, around, section)
    return spec


def value(path: str, told: str) -> Any:
    """What a person writes for the default that is told."""
    if told.startswith("["):
        return told.strip("[]").split(", ")
    quoted = path in ("engine.kv.hashSeed", "transfer.stagingMemory")
    return told if quoted or not re.fullmatch(r"[0-9]+|true|false", told) else json.loads(told)


def test_fields_with_a_plain_default_are_most_of_those_that_can_be_left_out() -> None:
    assert set(DEFAULTS) <= set(leaves())
    assert len(DEFAULTS) > 50


def planned(spec: dict[str, Any]) -> Plan:
    """The plan without the copy of the spec that is kept for `undo`, which is as it was written."""
    made = plan(serving(spec))
    return replace(made, objects=tuple(one for one in made.objects if "-spec-" not in one["metadata"]["name"]))


@pytest.mark.parametrize("path", DEFAULTS)
def test_writing_the_default_changes_nothing(path: str) -> None:
    least = minimal(path)
    assert planned(edited(least, path, value(path, DEFAULTS[path]))) == planned(least)


def _probe(rendered: Rendered) -> int:
    probe = rendered.prefill.container["startupProbe"]
    return int(probe["failureThreshold"] * probe["periodSeconds"])


def test_what_the_plan_renders_of_an_object_without_settings_is_what_is_told() -> None:
    rendered = render({"prefill": {}, "decode": {}})
    engine, told = rendered.prefill, DEFAULTS
    [router] = [made for made in rendered.makers() if made["metadata"]["labels"]["kvserving.dev/role"] == "router"]
    [service] = [made for made in rendered.all("Service") if made["spec"].get("type")]
    assert str(router["spec"]["replicas"]) == told["router.replicas"]
    assert service["spec"]["type"] == told["router.service.type"]
    assert str(service["spec"]["ports"][0]["port"]) == told["router.service.port"]
    assert _probe(rendered) >= Duration(told["prefill.startupTimeout"]).seconds > _probe(rendered) - 60
    assert engine.flag("--shutdown-timeout") == str(Duration(told["prefill.drainTimeout"]).seconds)
    assert engine.env["PYTHONHASHSEED"] == told["engine.kv.hashSeed"]
    assert engine.flag("--tensor-parallel-size") in (None, told["prefill.parallelism.tensor"])
    assert engine.container["resources"]["limits"]["nvidia.com/gpu"] == told["prefill.parallelism.tensor"]
    assert bool(rendered.all("NetworkPolicy")) is (told["networkPolicy.enabled"] == "true")
    assert rendered.role("prefill").deployment["spec"]["replicas"] == 1
    assert fields_default("spec.prefill", "replicas").startswith("1, unless")


def test_what_the_plan_renders_of_a_store_is_what_is_told() -> None:
    rendered = render(minimal("cache.l2.maxUsage"))
    [store] = rendered.all("StatefulSet")
    assert str(store["spec"]["replicas"]) == DEFAULTS["cache.l2.replicas"]
    limit = 64 * 2**30 * int(DEFAULTS["cache.l2.maxUsage"].removesuffix("%")) // 100
    assert str(limit) in json.dumps(store)
    [tier] = rendered.prefill.child("TieredOffloadConnector")["kv_connector_extra_config"]["secondary_tiers"]
    assert tier["load_timeout_s"] == Duration(DEFAULTS["cache.l2.loadTimeout"]).seconds


def test_the_targets_of_scalers_are_what_is_told() -> None:
    told = fields_default("spec.prefill.autoscaling", "target")
    listed = {words[1]: int(words[0]) for words in re.findall(r"(\d+) \((\w+)\)", told)}
    assert listed.keys() == {"queue", "running", "ttft", "itl", "kvUsage"}
    for metric, target in listed.items():
        scaling = {"max": 4, "metric": metric}
        implied, given = (
            render(pair(decode={"autoscaling": {**scaling, **more}})).all("HorizontalPodAutoscaler")
            for more in ({}, {"target": target})
        )
        assert implied == given
        other = render(pair(decode={"autoscaling": {**scaling, "target": target + 1}}))
        assert other.all("HorizontalPodAutoscaler") != given
    share = render(pair(decode={"autoscaling": {"max": 4, "metric": "running"}, "args": ["--max-num-seqs=50"]}))
    [scaler] = share.all("HorizontalPodAutoscaler")
    assert scaler["spec"]["metrics"][0]["pods"]["target"]["averageValue"] == "40"


def test_the_weights_of_connectors_are_what_is_told() -> None:
    told = fields_default("spec.cache", "connectors")
    [(nixl, other)] = re.findall(r"(\d+) for NixlConnector, (\d+) for", told)
    engine = render({**minimal("cache.l1.x")}).prefill
    weights = {child["kv_connector"]: child["kv_connector_extra_config"]["load_weight"] for child in engine.children}
    assert weights == {"NixlConnector": int(nixl), "TieredOffloadConnector": int(other)}


def fields_default(path: str, name: str) -> str:
    [group] = [group for group in GROUPS if path in group.paths]
    [field] = [field for field in fields.fields(group, GROUPS) if field.name == name]
    return field.default
