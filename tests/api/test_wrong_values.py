"""A wrong value is told in one short sentence, without what may be a secret."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from tests.api.objects import serving
from tests.api.refusals import faults, refusal_of

from kvserving_operator.api.load import inspect


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.decode.replicas", "2", "'2' is not a whole number: remove the quotes"),
        ("spec.decode.replicas", 1.5, "1.5 is not a whole number"),
        ("spec.decode.replicas", True, "true is not a whole number"),
        ("spec.decode.replicas", 10**30, "is a number beyond 64 bits"),
        ("spec.suspend", "yes", "'yes' is not true or false"),
        ("spec.suspend", 1, "1 is not true or false"),
        ("spec.engine.version", 0.33, '0.33 is not text: write "0.33.0"'),
        ("spec.engine.version", "0.33", "'0.33' is not a version of three numbers such as 0.33.0: write \"0.33.0\""),
        ("spec.engine.kv.hashSeed", 0, "0 is not text: put it in quotes"),
        ("spec.engine.kv.blockSize", 0, "'0' is neither auto nor a number of tokens from 1 to 65536"),
        ("spec.engine.args", "--a", "'--a' is not a list: write [\"--a\"]"),
        (
            "spec.decode",
            [],
            "a list is not a map of fields: its fields are replicas, autoscaling, parallelism, nodes, …",
        ),
        ("spec.decode.env", [1], 'the value is not a map of fields: write {name: A, value: "1"}'),
        ("spec.router.type", "smgg", "'smgg' is not one of smg, vllm-router, external, none; did you mean smg?"),
        ("spec.router.type", "nginx", "'nginx' is not one of smg, vllm-router, external, none"),
        ("spec.transfer.lease", 30, "30 is a number, not a duration such as 30s, 5m or 1h30m"),
        ("spec.transfer.lease", "30 s", "'30 s' is not a duration such as 30s, 5m or 1h30m; did you mean 30s?"),
        ("spec.transfer.lease", "0s", "'0s' must be greater than zero, such as 30s, 5m or 1h30m"),
        (
            "spec.decode.resources.limits",
            {"cpu": 0.5},
            '0.5 is a number with a fraction: write "0.5" in quotes for cores, a size with its unit, such as 512Mi',
        ),
        ("spec.router.service.port", 70000, "70000 is too large: at most 65535"),
        (
            "spec.model.secretRef",
            "HF Token",
            "'HF Token' is not a name of lowercase letters, digits, dashes and single dots",
        ),
        ("spec.cache.l1", {"size": "1Gi", "roles": []}, "a list has 0 entries: at least 1 must be given"),
        ("spec.engine.args", ["a"] * 65, "a list has more than 64 entries: shorten it"),
        ("spec.model.name", "a" * 1025, "has 1025 characters: at most 1024 are allowed, shorten it"),
        ("spec.cache.l1", {}, "is required"),
        ("spec.model", None, "is required"),
    ],
)
def test_wrong_values_are_told_in_one_short_sentence(path: str, value: Any, message: str) -> None:
    fault = refusal_of(path, value)
    assert fault.startswith(path)
    assert fault.endswith(f": {message}")


def test_a_value_that_json_does_not_know_is_refused() -> None:
    assert "put the value in quotes" in refusal_of("spec.decode.template", {"day": date(2026, 1, 1)})


def test_text_that_is_not_unicode_is_refused() -> None:
    assert faults('{"\\ud800": 1}')[0] == "a field name is not valid Unicode"
    assert refusal_of("spec.decode.template", {"a": "\ud800"}).endswith("is not valid Unicode text")


def test_values_of_variables_are_never_shown() -> None:
    found = faults(serving({"spec.decode.env": [{"name": "A", "value": 731}, {"name": "B", "value": "7" * 5000}]}))
    assert [fault.split(": ")[0] for fault in found] == ["spec.decode.env[0].value", "spec.decode.env[1].value"]
    assert not any("7" in fault.replace("4097", "") for fault in found if "env[0]" in fault)
    assert not any("777" in fault for fault in found)


def test_a_wrong_entry_of_a_list_is_no_list_that_is_too_short() -> None:
    found = inspect(serving({"spec.cache": {"l1": {"size": "8Gi", "roles": ["prefil"]}}}), strict=True).faults
    assert [str(fault) for fault in found] == [
        "spec.cache.l1.roles[0]: 'prefil' is not one of prefill, decode; did you mean prefill?"
    ]
    (empty,) = inspect(serving({"spec.cache": {"l1": {"size": "8Gi", "roles": []}}}), strict=True).faults
    assert str(empty) == "spec.cache.l1.roles: a list has 0 entries: at least 1 must be given"


@pytest.mark.parametrize(
    ("l2", "told"),
    [
        ({"type": "s3"}, "spec.cache.l2.type: s3, mooncake and external need spec.cache.l2.url"),
        ({"type": "s3"}, "set it to s3://bucket/prefix, mooncake://host:50051 or redis://host:6379"),
        ({"url": "s3://bucket"}, "spec.cache.l2.url: is given without spec.cache.l2.type: set that to s3 (s3://bucket"),
        ({"type": "external", "url": "other://h:1"}, "spec.cache.l2.url: other://h:1 must start with redis://"),
        ({"type": "s3", "url": "redis://h"}, "spec.cache.l2.url: redis://h must be s3://bucket/prefix"),
    ],
)
def test_the_address_of_a_store_is_told_by_form_and_value(l2: dict[str, Any], told: str) -> None:
    (fault,) = inspect(serving({"spec.cache": {"l2": l2}}), strict=True).faults
    assert told in str(fault)


@pytest.mark.parametrize("url", ["other://u:hunter2@h:1", "other://h:1/?password=hunter2", "h:1#hunter2", "h;hunter2"])
def test_an_address_that_may_hold_a_secret_is_not_repeated(url: str) -> None:
    found = inspect(serving({"spec.cache": {"l2": {"type": "external", "url": url}}}), strict=True).faults
    assert found
    assert not [fault for fault in found if "hunter2" in str(fault)]
