"""The generated files of the chart: current, made of the comments of the values, refused where a comment is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.charts import CHART

from kvserving_operator.chart import annotated, readme, schema, templates
from kvserving_operator.chart.__main__ import main

VALUES = annotated.read((CHART / "values.yaml").read_text())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHART, tmp_path / "chart"))


def test_the_files_are_current() -> None:
    assert main(["--check", str(CHART)]) == 0


@pytest.mark.parametrize(
    "name", ["values.schema.json", "README.md", "templates/crds.yaml", "templates/_rules.tpl", "dashboards/fleet.json"]
)
def test_a_file_that_differs_is_found_and_written_again(
    copy: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / name).write_text((copy / name).read_text() + "\n# more")
    assert main(["--check", str(copy)]) == 1
    assert name in capsys.readouterr().err
    assert main(["--write", str(copy)]) == 0
    assert (copy / name).read_text() == (CHART / name).read_text()


def test_a_new_value_is_in_schema_and_readme(copy: Path) -> None:
    with (copy / "values.yaml").open("a") as file:
        file.write("\n# How many.\n# @schema {minimum: 0, maximum: 9}\nmany: 3\n")
    assert main(["--check", str(copy)]) == 1
    assert main(["--write", str(copy)]) == 0
    made = json.loads((copy / "values.schema.json").read_text())["properties"]["many"]
    assert made == {"description": "How many.", "type": "integer", "minimum": 0, "maximum": 9}
    assert "| `many` | `3` | How many. |" in (copy / "README.md").read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\n", "line 1: a has no comment"),
        ("# A.\na:\n  b: 1\n", "line 3: a.b has no comment"),
        ("# A.\na: {}\n", "line 2: a is empty: name a shape by @schema"),
        ("# A.\n# @schema maximum\na: 1\n", "line 2: @schema of a is no map"),
        ("# A.\na: 1\n", "a is a number without bounds"),
        ("# A.\na: b\n", "a is text without a bound"),
        ("# A.\na: []\n", "a is a list without items and maxItems"),
        ("# A.\n# @schema {maxProperties: 2}\na: {}\n", "a is an object without a shape"),
        ("# A.\na:\n", "a has the default None"),
        ("# A.\n# @schema {$ref: colour}\na: x\n", "a: there is no shape 'colour'"),
        ("- a\n", "the values are no map"),
    ],
)
def test_a_value_that_is_not_described_or_not_bounded_is_refused(text: str, words: str) -> None:
    with pytest.raises(annotated.Unannotated) as refused:
        schema.render(annotated.read(text))
    assert words in str(refused.value)


def test_a_missing_comment_fails_the_command(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "values.yaml").write_text("a: 1\n")
    assert main(["--check", str(copy)]) == 1
    assert "values.yaml: line 1: a has no comment" in capsys.readouterr().err


def test_every_default_is_read_as_it_stands() -> None:
    def whole(values: tuple[annotated.Value, ...]) -> dict[str, Any]:
        return {v.path[-1]: whole(v.keys) if v.keys else v.default for v in values}

    assert whole(VALUES) == yaml.safe_load((CHART / "values.yaml").read_text())


def test_every_object_of_the_schema_is_closed_or_a_map() -> None:
    made = json.loads((CHART / "values.schema.json").read_text())
    # Helm hands `global` to every chart of a parent; ways out are the API's own form.
    del made["properties"]["global"]
    free = made["properties"]["networkPolicy"]["properties"]["extraEgress"]["items"]["properties"]
    assert set(free) == {"to", "ports"}
    free.clear()

    def look(node: Any, path: str) -> int:
        seen = 0
        if isinstance(node, dict):
            if node.get("type") == "object":
                assert "additionalProperties" in node, path
                seen = 1
            return seen + sum(look(value, f"{path}/{key}") for key, value in node.items())
        return sum(look(value, path) for value in node) if isinstance(node, list) else 0

    assert look(made, "") > 50


def test_the_readme_keeps_what_is_written_by_hand() -> None:
    made = readme.render(f"# By hand\n\n{readme.MARK}\n\nleft over", VALUES)
    assert made.startswith(f"# By hand\n\n{readme.MARK}\n\n| Value |")
    assert "left over" not in made
    rows = [line for line in made.splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(list(value.leaves())) for value in VALUES)


def test_braces_in_the_crd_reach_the_apiserver_as_they_are() -> None:
    assert templates._literal("a {{ b }}") == 'a {{ "{{" }} b }}'
