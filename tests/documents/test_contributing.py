"""CONTRIBUTING.md leads to files that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import kvserving_operator
from kvserving_operator.api.base import Section
from kvserving_operator.api.v1alpha1 import KVServingSpec

ROOT = Path(__file__).parents[2]
OPERATOR = Path(kvserving_operator.__file__).parent
TABLE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2].partition("\n## ")[0]
ROWS = [line.split(" | ") for line in TABLE.splitlines() if line.startswith("| ")][1:]


def _spelled_out(path: str) -> Iterator[str]:
    """``a/{b,c}.py`` is ``a/b.py`` and ``a/c.py``."""
    head, brace, rest = path.partition("{")
    if not brace:
        yield path
        return
    choices, _, tail = rest.partition("}")
    for choice in choices.split(","):
        yield from _spelled_out(head + choice + tail)


def _led_to(cell: str) -> Iterator[tuple[str, list[Path]]]:
    """Each path of a cell with what is there. One without its head is below the package of the path before it."""
    package = ROOT
    for span in re.findall(r"`([^` ]*/[^` ]*)`", cell):
        for path in _spelled_out(span):
            inside = re.match(r"(?:operator|connector)/src/\w+/", path)
            package = ROOT / inside[0] if inside else package
            yield path, [file for folder in (ROOT, package) for file in folder.glob(path.rstrip("/"))]


def _unknown(cell: str) -> list[str]:
    return [path for path, files in _led_to(cell) if not files]


def test_the_table_has_rows() -> None:
    assert len(ROWS) > 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("| "))
def test_what_is_to_be_looked_in_exists(row: list[str]) -> None:
    assert _unknown(row[1]) == []


def test_a_path_that_leads_nowhere_is_seen() -> None:
    assert _unknown("`operator/src/kvserving_operator/plan/none.py`") == [
        "operator/src/kvserving_operator/plan/none.py"
    ]
    assert _unknown("`operator/src/kvserving_operator/plan/engine.py`, `plan/{roles,none}.py`") == ["plan/none.py"]


@pytest.mark.parametrize(
    "pattern",
    [
        "api/*_spec.py",
        "api/rules_*.py",
        "doctor/checks/[!_]*.py",
        "doctor/gather_*.py",
        "control/events.py",
        "recovery/[!_]*.py",
    ],
)
def test_every_file_of_a_kind_is_in_the_table(pattern: str) -> None:
    named = {file for row in ROWS for _, files in _led_to(row[1]) for file in files}
    missing = sorted(str(path.relative_to(ROOT)) for path in set(OPERATOR.glob(pattern)) - named)
    assert missing == [], "say in the table of CONTRIBUTING.md what is to be changed in these"


def test_each_section_of_the_spec_leads_to_the_file_that_has_it() -> None:
    for attribute, field in KVServingSpec.model_fields.items():
        name = field.alias or attribute
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        [module] = {kind.__module__ for kind in kinds if issubclass(kind, Section)} or {KVServingSpec.__module__}
        file = f"{module.removeprefix('kvserving_operator.').replace('.', '/')}.py"
        rows = [
            row[1] for row in ROWS if row[0].startswith(("| a field of ", "| a section of ")) and f"`{name}`" in row[0]
        ]
        assert [file in row for row in rows] == [True], f"one row of CONTRIBUTING.md is of fields of {name}, in {file}"
