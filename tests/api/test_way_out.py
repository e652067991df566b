"""A value of the wrong type is told with what to write, which is then taken."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from tests.api.objects import serving
from tests.api.refusals import refusal_of

from kvserving_operator.api import way_out
from kvserving_operator.api.load import inspect
from kvserving_operator.api.rules_spec import URI_MEANT

FORMS: list[tuple[str, Any, str]] = [
    ("spec.cache.l1", "256Mi", "{size: 256Mi}"),
    ("spec.cache.l1", 4, "{size: 4Gi}"),
    ("spec.cache.l2", "1Gi", "{size: 1Gi}"),
    ("spec.cache.l2", "valkey", "{type: valkey, size: 4Gi}"),
    ("spec.cache.l2", "redis", "{type: valkey, size: 4Gi}"),
    ("spec.cache.l2", "filesystem", "{type: filesystem, size: 4Gi}"),
    ("spec.cache.l2", "external", "{type: external, url: redis://host:6379}"),
    ("spec.cache.l2", "s3", "{type: s3, url: s3://bucket/prefix}"),
    ("spec.cache.l2", "mooncake", "{type: mooncake, url: mooncake://host:50051}"),
    ("spec.model", "tiny", "{uri: hf://owner/name}"),
    ("spec.model", "Qwen/Qwen3-8B", "{uri: hf://Qwen/Qwen3-8B}"),
    ("spec.model", "/root/x", "{uri: file:///root/x}"),
    ("spec.prefill", 2, "{replicas: 2}"),
    ("spec.decode.parallelism", 4, "{tensor: 4}"),
    ("spec.decode.autoscaling", 4, "{max: 4}"),
    ("spec.decode.resources.limits", 4, "{memory: 8Gi}"),
    ("spec.decode.template", "x", "{spec: {nodeSelector: {disk: fast}}}"),
    ("spec.engine", "cpu", "{device: cpu}"),
    ("spec.router", "smg", "{type: smg}"),
    ("spec.kvcached", True, "{enabled: true}"),
    ("spec.ratio", "1:4", '{min: "1:4"}'),
    ("spec.transfer.verify", "5m", "{interval: 5m}"),
    ("spec.engine.env", {"A": "1"}, '[{name: A, value: "1"}]'),
    ("spec.engine.env", {"name": "B", "value": "1"}, '[{name: B, value: "1"}]'),
    ("spec.engine.env", "A=1", '[{name: A, value: "1"}]'),
    ("spec.engine.args", "--a", '["--a"]'),
    ("spec.model.loras", {"a": "b"}, "[{name: a, uri: hf://owner/name}]"),
    ("spec.cache.connectors", {"NixlConnector": 9}, "[{name: NixlConnector, weight: 1}]"),
    ("spec.engine.version", 0.29, '"0.29.0"'),
    ("spec.engine.version", "0.29", '"0.29.0"'),
    ("spec.engine.version", "v0.29.0", '"0.29.0"'),
]
BESIDE: dict[str, dict[str, Any]] = {"spec.kvcached": {"spec.engine.device": "gpu"}}


@pytest.mark.parametrize(("path", "value", "form"), FORMS)
def test_the_form_that_is_told_for_a_wrong_value_is_taken(path: str, value: Any, form: str) -> None:
    assert refusal_of(path, value).endswith(f": write {form}")
    assert inspect(serving({path: yaml.safe_load(form), **BESIDE.get(path, {})}), strict=True).faults == ()


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("spec.cache.l1.size", 0.25, "0.25 is a number without a unit: write it with one, such as 256Mi"),
        ("spec.cache.l1.size", 1.5, "1.5 is a number without a unit: write it with one, such as 1536Mi"),
        ("spec.cache.l1.size", 1e9 + 0.5, "write it with one, such as 64Gi"),
        ("spec.transfer.lease", 0.5, "0.5 is a number, not a duration such as 30s, 5m or 1h30m"),
        ("spec.cache.l2.maxUsage", 0.85, "0.85 is a number, not a percentage from 1% to 100%"),
        ("spec.engine.version", 1, "1 is not text of the form that is wanted: '1' is not a version of three numbers"),
        ("spec.engine.kv.hashSeed", 1.5, "'1.5' is not a whole number in quotes"),
        ("spec.model.uri", 5, "5 is not text: write hf://owner/name, or file:///path"),
        ("spec.cache", "1Gi", "'1Gi' is not a map of fields: its fields are l1, l2, connectors"),
        ("spec.decode", [{"replicas": 2}], "a list is not a map of fields: its fields are replicas, autoscaling"),
        ("spec.suspend", "true", "'true' is not true or false: remove the quotes"),
        ("spec.engine.device", "CUDA", "'CUDA' is not one of gpu, cpu; write gpu"),
    ],
)
def test_no_way_out_leads_into_a_second_refusal(path: str, value: Any, told: str) -> None:
    assert told in refusal_of(path, value)


def test_redis_is_told_to_be_a_store_that_is_deployed_or_one_of_the_users() -> None:
    told = refusal_of("spec.cache.l2", {"type": "redis"})
    assert told.endswith("; write valkey (deployed with the service, of size) or external (yours, at url)")


def test_a_variable_that_is_no_map_is_told_without_what_may_be_a_secret() -> None:
    told = refusal_of("spec.engine.env", ["HF_TOKEN=hunter2"])
    assert told == 'spec.engine.env[0]: the value is not a map of fields: write {name: A, value: "1"}'


@pytest.mark.parametrize("path", ["spec.model", "spec.model.loras"])
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/root/x", "file:///root/x"),
        ("~/x", "file://~/x"),
        ("./x", "file:./x"),
        ("Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B"),
        ("tiny", None),
        ("http://example.org/m", None),
        ("/root/my model", None),
    ],
)
def test_an_address_without_a_scheme_is_told_with_the_one_that_is_meant(
    path: str, written: str, meant: str | None
) -> None:
    told = refusal_of(path, {"uri": written} if path == "spec.model" else [{"name": "a", "uri": written}])
    assert "is not a known source: use hf://owner/name" in told
    assert re.findall(r"did you mean (\S+)\?", told) == ([] if meant is None else [meant])
    assert way_out.source(written) == meant
    assert any(re.search(form, written) for form, _ in URI_MEANT) is (meant is not None)
