"""CONTRIBUTING.md leads to files that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def _unknown(cell: str) -> list[str]:
    """Paths of a cell that lead nowhere. One without its head is below the package of the path before it."""
    unknown, package = [], ROOT
    for span in re.findall(r"`([^` ]*/[^` ]*)`", cell):
        for path in _spelled_out(span):
            inside = re.match(r"(?:operator|connector)/src/\w+/", path)
            package = ROOT / inside[0] if inside else package
            pattern = path.rstrip("/")
            if not any(ROOT.glob(pattern)) and not any(package.glob(pattern)):
                unknown.append(path)
    return unknown


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
