from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvserving_operator.api.base import Section
from kvserving_operator.api.fields import known_fields
from kvserving_operator.api.rules import RULES
from kvserving_operator.api.schema import (
    custom_resource_definition,
    definitions,
    main,
    object_schema,
    render,
)
from kvserving_operator.api.v1alpha1 import KVServingSpec

CRDS = Path(__file__).parents[2] / "crds"
SCHEMA = object_schema()
RESERVED = re.compile(
    "true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return|var|void|while"
)
ALLOWED = re.compile(
    "type|description|enum|(min|max)(imum|Length|Items|Properties)|pattern|format|items|properties|required|anyOf"
    "|additionalProperties|x-kubernetes-(int-or-string|list-type|list-map-keys|preserve-unknown-fields|validations)"
)


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema inside ``schema`` with its path."""
    yield path, schema
    for name, member in schema.get("properties", {}).items():
        yield from nodes(member, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[*]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


ALL = dict(nodes(SCHEMA))


@pytest.fixture(params=definitions())
def every(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """Every schema of one of the CRDs with its path."""
    (version,) = definitions()[request.param]["spec"]["versions"]
    return dict(nodes(version["schema"]["openAPIV3Schema"]))


def fields(every: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {path: node for path, node in every.items() if path not in ("", ".metadata")}


def test_the_written_files_are_up_to_date_and_the_only_ones() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in CRDS.iterdir()}
    assert written == {name: render(definition) for name, definition in definitions().items()}


@pytest.mark.parametrize("name", definitions())
def test_check_notices_a_changed_and_a_missing_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["--check", str(tmp_path)]) == 1
    assert main(["--write", str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    with (tmp_path / name).open("a") as file:
        file.write("# edited\n")
    assert main(["--check", str(tmp_path)]) == 1
    assert "differs" in capsys.readouterr().err


def test_a_field_added_to_the_models_changes_the_file() -> None:
    assert yaml.safe_load(render()) == custom_resource_definition()
    assert set(SCHEMA["properties"]["spec"]["properties"]) == set(known_fields(KVServingSpec))


def test_every_field_has_a_description(every: dict[str, dict[str, Any]]) -> None:
    without = [p for p, n in fields(every).items() if not n.get("description") and not p.endswith(("[*]", "{}"))]
    assert without == []


def test_fields_with_a_default_say_so() -> None:
    def check(section: type[Section], node: dict[str, Any]) -> Iterator[str]:
        for name, field in section.model_fields.items():
            shown = node["properties"][field.alias or name]
            if isinstance(field.default, (str, int, bool)) and "Default: " not in shown["description"]:
                yield f"{section.__name__}.{name}"
            nested = known_fields(section)[field.alias or name]
            if nested is not None:
                yield from check(nested, shown.get("items", shown))

    assert list(check(KVServingSpec, SCHEMA["properties"]["spec"])) == []
    lease = ALL[".spec.transfer.lease"]["description"]
    assert lease == "How long prefill keeps KV that decode has not fetched. Default: 30s."


def test_only_what_structural_schemas_allow_is_used(every: dict[str, dict[str, Any]]) -> None:
    others = {path: [key for key in node if not ALLOWED.fullmatch(key)] for path, node in every.items()}
    assert {path: keys for path, keys in others.items() if keys} == {}


def test_every_field_has_one_type(every: dict[str, dict[str, Any]]) -> None:
    for path, node in every.items():
        if node.get("x-kubernetes-int-or-string"):
            assert "type" not in node, path
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
        else:
            assert node["type"] in ("object", "array", "string", "integer", "boolean"), path
            assert "anyOf" not in node, path


def test_every_text_list_and_map_has_a_bound(every: dict[str, dict[str, Any]]) -> None:
    for path, node in fields(every).items():
        kind = node.get("type", "text")
        if kind in ("string", "text") and "enum" not in node and path not in (".apiVersion", ".kind"):
            assert "maxLength" in node, path
        if kind == "array":
            assert "maxItems" in node, path
            assert "items" in node, path
        if kind == "object" and "properties" not in node:
            assert "maxProperties" in node, path
            assert "additionalProperties" in node or node.get("x-kubernetes-preserve-unknown-fields"), path
        if kind == "integer":
            assert "minimum" in node, path


def test_every_list_says_how_it_is_merged(every: dict[str, dict[str, Any]]) -> None:
    for path, node in every.items():
        if node.get("type") == "array":
            assert node["x-kubernetes-list-type"] in ("atomic", "set", "map"), path
            for key in node.get("x-kubernetes-list-map-keys", ()):
                assert key in node["items"]["required"], path


def test_field_names_are_camel_case_and_need_no_escape_in_rules(every: dict[str, dict[str, Any]]) -> None:
    for path, node in every.items():
        for name in node.get("properties", {}):
            assert re.fullmatch(r"[a-z][A-Za-z0-9]*", name), f"{path}.{name}"
            assert not RESERVED.fullmatch(name), f"{path}.{name}"


def test_free_form_fields_are_the_expected_ones() -> None:
    free = {path.rsplit(".", 1)[-1] for path, node in ALL.items() if node.get("x-kubernetes-preserve-unknown-fields")}
    assert free == {"template", "valueFrom", "parentRefs[*]"}


def test_every_rule_is_in_the_schema_once() -> None:
    rendered = [(path, v["rule"]) for path, node in ALL.items() for v in node.get("x-kubernetes-validations", ())]
    assert sorted(rendered) == sorted((f".{rule.at}" if rule.at else "", rule.cel) for rule in RULES)


def test_field_paths_of_rules_exist(every: dict[str, dict[str, Any]]) -> None:
    for path, node in every.items():
        for validation in node.get("x-kubernetes-validations", ()):
            if "fieldPath" in validation:
                assert f"{path}{validation['fieldPath']}" in every, validation


def test_message_expressions_have_a_cost_that_the_apiserver_can_bound() -> None:
    for path, node in ALL.items():
        for validation in node.get("x-kubernetes-validations", ()):
            expression = validation.get("messageExpression", "")
            assert "string(" not in expression, path
            assert ".filter(" not in expression, path


def test_columns_and_names_are_the_documented_ones() -> None:
    spec = custom_resource_definition()["spec"]
    (version,) = spec["versions"]
    columns = version["additionalPrinterColumns"]
    assert [c["name"] for c in columns if not c.get("priority")] == [
        "Ready",
        "Available",
        "Reason",
        "Prefill",
        "Decode",
        "Transfer",
        "URL",
        "Age",
    ]
    assert [c["name"] for c in columns if c.get("priority")] == ["Model", "L1", "L2", "Revision"]
    assert (spec["scope"], spec["names"]["shortNames"], spec["names"]["categories"]) == (
        "Namespaced",
        ["kvs"],
        ["kvserving"],
    )
    assert version["subresources"] == {"status": {}}


def test_every_column_shows_a_field_of_the_status() -> None:
    (version,) = custom_resource_definition()["spec"]["versions"]
    for column in version["additionalPrinterColumns"]:
        path = re.sub(r"\[\?\(.*?\)\]", "[*]", column["jsonPath"])
        assert path in ALL or path == ".metadata.creationTimestamp", path


def test_the_file_fits_an_annotation() -> None:
    assert len(render().encode()) < 262_144 * 3 // 4
