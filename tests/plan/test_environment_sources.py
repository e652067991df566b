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
        {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi", "containerName": "engine"}},
    ],
)
def test_sources_that_the_apiserver_takes_are_accepted(source: dict[str, Any]) -> None:
    assert faults(pair(decode={"env": [{"name": "A", "valueFrom": source}]})) == ""
