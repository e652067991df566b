"""Sources of variables, in the spec's own lists."""

from __future__ import annotations

from typing import Any

import pytest
from tests.plan.support import faults, pair

SECRET = {"name": "a", "key": "b"}
REFUSED: list[tuple[Any, str, str]] = [
    ({}, "", "names no source"),
    ({"secretKeyRef": None}, "", "names no source"),
    ({"secretKeyRef": SECRET, "configMapKeyRef": SECRET}, "", "2 sources (secretKeyRef, configMapKeyRef)"),
    ({"vaultRef": SECRET}, "", "vaultRef is no source"),
    ({"secretKeyRef": "a/b"}, ".secretKeyRef", "must be an object with key and name"),
    ({"secretKeyRef": {"name": "a"}}, ".secretKeyRef", "needs key"),
    ({"secretKeyRef": {**SECRET, "name": "A_B"}}, ".secretKeyRef.name", "'A_B' is not a name"),
    ({"configMapKeyRef": {**SECRET, "key": "a/b"}}, ".configMapKeyRef.key", "'a/b' is no key"),
    ({"secretKeyRef": {**SECRET, "namespace": "c"}}, ".secretKeyRef", "namespace is no field of secretKeyRef"),
    ({"fieldRef": {"fieldPath": "status.phase"}}, ".fieldRef.fieldPath", "status.podIP"),
    ({"secretKeyRef": {**SECRET, "name": "a" * 254}}, ".secretKeyRef.name", "is not a name"),
    *(
        ({"secretKeyRef": {**SECRET, "key": key}}, ".secretKeyRef.key", f"'{key}' is no key")
        for key in (".", "..", "..x")
    ),
    ({"configMapKeyRef": {**SECRET, "key": "a" * 254}}, ".configMapKeyRef.key", "is no key"),
    ({"secretKeyRef": {**SECRET, "optional": "yes"}}, ".secretKeyRef.optional", "is not true or false"),
    ({"fieldRef": {"fieldPath": "metadata.uid", "apiVersion": "v2"}}, ".fieldRef.apiVersion", "'v2' is no version"),
    ({"fieldRef": {"fieldPath": "metadata.labels['a b']"}}, ".fieldRef.fieldPath", "'a b' is no key of a label"),
    ({"fieldRef": {"fieldPath": "metadata.labels['A.B/c']"}}, ".fieldRef.fieldPath", "'A.B/c' is no key of a label"),
    (
        {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1Mi"}},
        ".resourceFieldRef.divisor",
        "'1Mi' is no divisor of limits.cpu: use 1 or 1m",
    ),
    (
        {"resourceFieldRef": {"resource": "requests.memory", "divisor": "2Mi"}},
        ".resourceFieldRef.divisor",
        "'2Mi' is no divisor",
    ),
    (
        {"resourceFieldRef": {"resource": "limits.cpu", "containerName": 5}},
        ".resourceFieldRef.containerName",
        "not text",
    ),
    ({"resourceFieldRef": {"resource": "limits.gpu"}}, ".resourceFieldRef.resource", "limits.cpu"),
]


@pytest.mark.parametrize("section", ["engine", "prefill", "decode"])
@pytest.mark.parametrize(("source", "path", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_a_source_that_the_apiserver_refuses_is_refused_once(section: str, source: Any, path: str, words: str) -> None:
    (line,) = faults(pair(**{section: {"env": [{"name": "A", "valueFrom": source}]}})).splitlines()
    assert line.startswith(f"spec.{section}.env[0].valueFrom{path}: ")
    assert words in line


@pytest.mark.parametrize(
    "source",
    [
        {"secretKeyRef": {**SECRET, "optional": True}},
        {"configMapKeyRef": {"name": "a.b", "key": "c_d.txt"}},
        {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels['example.com/a']"}},
        {"fieldRef": {"fieldPath": "metadata.annotations['Example.com/A']"}},
        {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi", "containerName": "engine"}},
        {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1000m"}},
        {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}},
        {"resourceFieldRef": {"resource": "limits.ephemeral-storage", "divisor": 0}},
        {"secretKeyRef": {"name": "a" * 253, "key": ".a..b"}},
    ],
)
def test_sources_that_the_apiserver_takes_are_accepted(source: dict[str, Any]) -> None:
    assert faults(pair(decode={"env": [{"name": "A", "valueFrom": source}]})) == ""


SPACE = "VLLM_CPU_KVCACHE_SPACE"


@pytest.mark.parametrize("section", ["engine", "prefill", "decode"])
@pytest.mark.parametrize(
    ("value", "shown", "way_out"),
    [
        ("1Gi", "'1Gi'", "1"),
        ("4GiB", "'4GiB'", "4"),
        ("512Mi", "'512Mi'", "1"),
        ("1.5", "'1.5'", "2"),
        ("-1", "what is given", "1"),
        ("", "what is given", "1"),
        ("hunter2", "what is given", "1"),
    ],
)
def test_a_size_of_kv_that_vllm_cannot_read_is_refused_with_what_to_write(
    section: str, value: str, shown: str, way_out: str
) -> None:
    told = f'{shown} is no whole number of GiB, which {SPACE} is: write "{way_out}" (GiB)'
    assert (
        faults(pair(**{section: {"env": [{"name": SPACE, "value": value}]}})) == f"spec.{section}.env[0].value: {told}"
    )


def test_a_size_of_kv_in_a_template_is_refused_at_its_place() -> None:
    engine = {"name": "engine", "env": [{"name": SPACE, "value": "1Gi"}]}
    told = faults(pair(decode={"template": {"spec": {"containers": [engine]}}}))
    assert told.startswith("spec.decode.template.spec.containers[engine].env[0].value: '1Gi' is no whole number of GiB")


@pytest.mark.parametrize("value", ["0", "1", " 40 ", "$(SPACE)"])
def test_a_size_of_kv_that_vllm_reads_is_taken(value: str) -> None:
    assert faults(pair(engine={"env": [{"name": SPACE, "value": value}]})) == ""
