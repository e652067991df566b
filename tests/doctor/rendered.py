"""Every object whose settings the explanations must cover: the examples, the valid cases, each field of the spec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tests import specs
from tests.plan.support import edited, pair, raw_case, serving
from tests.plan.test_every_field import CHANGES

from kvserving_operator.api import load
from kvserving_operator.api.v1alpha1 import KVServing
from kvserving_operator.doctor.explain import Injected, injected
from kvserving_operator.plan.planning import check, plan
from kvserving_operator.plan.types import CLUSTER, Site

EXAMPLES = Path(__file__).parents[2] / "examples"

# What no example and no single field shows.
_MORE: tuple[dict[str, Any], ...] = (
    pair(model={"uri": "s3://models/qwen", "secretRef": "keys"}),
    pair(model={"uri": "hf://Qwen/Qwen3-8B", "cache": {"pvc": "weights"}}),
    pair(kvcached={"enabled": True, "maxCachedTokens": 1000}),
    {"kvcached": {"enabled": True}, "engine": {"version": "0.26.0"}},
    pair(router={"type": "vllm-router"}),
    pair(router={"apiKeySecretRef": "clients"}),
    pair(cache={"l2": {"type": "mooncake", "url": "mooncake://10.0.0.1:50051"}}),
    {"decode": {"replicas": 1}, "router": {"type": "smg"}},
    pair(engine={"kv": {"hybrid": "disabled"}}),
    pair(
        prefill={"parallelism": {"data": 2, "expert": True}},
        cache={"l1": {"size": "8Gi", "owner": "worker"}},
    ),
    pair(cache={"l2": {"type": "s3", "url": "s3://bucket/path", "region": "eu", "tenant": "a", "secretRef": "s"}}),
)


def examples() -> list[Path]:
    """The files under ``examples`` that hold an object. That they are valid is asked elsewhere (``tests/api``)."""
    read = {path: load.inspect_file(path).serving for path in sorted(EXAMPLES.rglob("*.yaml"))}
    return [path for path, made in read.items() if made is not None and not check(made)]


def settings(made: KVServing, site: Site = CLUSTER) -> tuple[Injected, ...]:
    """What the plan of ``made`` injects."""
    return injected(made, plan(made, site=site).objects)


def objects() -> Iterator[tuple[str, KVServing]]:
    """Every object, with a name for messages."""
    for path in (*examples(), *specs.accepted()):
        found = load.inspect_file(path).serving
        assert found is not None, path
        yield path.name, found
    for field, (value, also) in CHANGES.items():
        raw = raw_case("12")
        for key, text in [*also.items(), (field, value)]:
            raw = edited(raw, f"spec.{key}", text)
        yield field, KVServing.model_validate(yaml.safe_load(yaml.safe_dump(raw)))
    for spec in _MORE:
        yield str(spec), serving(spec)
