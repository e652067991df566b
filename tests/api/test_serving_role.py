"""The CRD of ``KVServingRole``: what scalers see of a role."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError
from tests.api.test_schema import nodes

from kvserving_operator.api.base import MOST_REPLICAS
from kvserving_operator.api.engines_spec import Role
from kvserving_operator.api.schema import role_definition
from kvserving_operator.api.serving_role import RULES, KVServingRoleSpec, KVServingRoleStatus
from kvserving_operator.api.status import KVServingStatus

SPEC = role_definition()["spec"]
(VERSION,) = SPEC["versions"]
ALL = dict(nodes(VERSION["schema"]["openAPIV3Schema"]))
VALID = {
    "servingName": "qwen",
    "role": "decode",
    "bounds": {"min": 1, "max": 4},
    "selector": "kvserving.dev/name=qwen,kvserving.dev/role=decode",
}


def test_scale_reads_and_writes_fields_that_exist() -> None:
    scale = VERSION["subresources"]["scale"]
    assert {path: ALL[path]["type"] for path in scale.values()} == {
        ".spec.replicas": "integer",
        ".status.replicas": "integer",
        ".status.selector": "string",
    }
    assert VERSION["subresources"]["status"] == {}


def test_every_column_shows_a_field() -> None:
    for column in VERSION["additionalPrinterColumns"]:
        path = column["jsonPath"]
        assert path in ALL or path == ".metadata.creationTimestamp", path
    assert SPEC["names"]["shortNames"] == ["kvsr"]


def test_kubectl_takes_kvserving_for_one_kind() -> None:
    """A category is looked for first: with a second kind in it, `kubectl get kvserving qwen` would ask for both."""
    assert "categories" not in SPEC["names"]


def test_replicas_may_be_absent_and_zero_and_have_no_default() -> None:
    """A default would be written by the apiserver, and a number that the operator leaves out would be reset to it."""
    node = ALL[".spec.replicas"]
    assert "default" not in node
    assert node["minimum"] == 0
    assert "replicas" not in ALL[".spec"]["required"]
    assert KVServingRoleSpec.model_validate(VALID).replicas is None
    assert KVServingRoleSpec.model_validate({**VALID, "replicas": 0}).replicas == 0


@pytest.mark.parametrize(
    ("path", "wrong"),
    [("replicas", -1), ("replicas", "3"), ("role", "router"), ("servingName", "No Name"), ("bounds", {"min": 1})],
)
def test_a_wrong_value_is_refused_under_its_path(path: str, wrong: object) -> None:
    with pytest.raises(ValidationError) as refused:
        KVServingRoleSpec.model_validate({**VALID, path: wrong})
    assert refused.value.errors()[0]["loc"][0] == path


def test_a_status_of_nothing_yet_is_read() -> None:
    assert KVServingRoleStatus.model_validate({}).selector is None


def test_every_rule_stands_in_the_schema_where_its_fields_are() -> None:
    placed = {(path, v["rule"]) for path, node in ALL.items() for v in node.get("x-kubernetes-validations", ())}
    assert placed == {(f".{rule.at}", rule.cel) for rule in RULES}
    for rule in RULES:
        for chain in re.findall(r"\b(?:self|oldSelf)((?:\.[a-z][A-Za-z]*)+)", rule.cel):
            assert f".{rule.at}{chain}" in ALL, rule.name


def test_what_asks_for_engines_has_one_bound_and_what_counts_them_holds_a_rollout() -> None:
    for bound in (Role.model_json_schema(), KVServingRoleSpec.model_json_schema()):
        told = _maxima(bound, ("replicas", "min", "max"))
        assert set(told) == {MOST_REPLICAS}
        assert len(told) == 3
    for counted in (KVServingStatus.model_json_schema(), KVServingRoleStatus.model_json_schema()):
        assert min(_maxima(counted, ("replicas", "ready"))) > MOST_REPLICAS


def _maxima(schema: Any, names: tuple[str, ...]) -> list[int]:
    """The bounds of the fields that have these names, wherever they are."""
    if isinstance(schema, list):
        return [found for each in schema for found in _maxima(each, names)]
    if not isinstance(schema, dict):
        return []
    properties = schema.get("properties", {})
    own = [_maximum(field) for name, field in properties.items() if name in names]
    return [*(found for found in own if found is not None), *_maxima(list(schema.values()), names)]


def _maximum(field: dict[str, Any]) -> int | None:
    return next((each["maximum"] for each in (field, *field.get("anyOf", ())) if "maximum" in each), None)
