"""The examples: objects that are taken and planned, and the guide that counts and explains them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.api.objects import load_file
from tests.examples import PEERS, files, lines, spread_lines
from tests.plan.fields import leaves

from kvserving_operator.plan.planning import check

GUIDE = Path(__file__).parents[1] / "docs" / "migrate.md"
COMPARISON = GUIDE.with_name("comparison.md")
SYSTEMS = {"AIBrix", "production-stack", "kthena", "KServe", "llm-d", "Dynamo", "RBG"}
_ROW = re.compile(
    r"\| (?P<system>[^|]+) \| `(?P<theirs>[^`]+)` \| (?P<long>\d+)[^|]* "
    r"\| \[[^]]+\]\((?P<ours>[^)]+)\) \| (?P<short>\d+), (?P<spread>\d+) \|"
)


class Row(NamedTuple):
    """A line of the table: their file and its lines, ours, its lines, and those with a field on each."""

    system: str
    theirs: str
    long: int
    ours: Path
    short: int
    spread: int


def table() -> list[Row]:
    found = (_ROW.match(line) for line in GUIDE.read_text().splitlines())
    return [
        Row(
            m["system"],
            m["theirs"],
            int(m["long"]),
            (GUIDE.parent / m["ours"]).resolve(),
            int(m["short"]),
            int(m["spread"]),
        )
        for m in found
        if m
    ]


def fields_named() -> set[str]:
    """Return the fields of ours that the guide names: the second columns of its tables of fields."""
    section, named = False, set[str]()
    for line in GUIDE.read_text().splitlines():
        section = section or line.startswith("## From ")
        if section and line.startswith("| ") and not line.startswith("| Theirs"):
            ours = line.split(" | ")[1]
            named |= {word for word in re.findall(r"`([^`]+)`", ours) if re.fullmatch(r"[a-z][\w.]*", word)}
    return named


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_an_example_is_taken_and_planned(path: Path) -> None:
    assert check(load_file(path)) == ()


def test_no_two_examples_share_a_name() -> None:
    names = [load_file(path).metadata.name for path in files() if path.parent == PEERS]
    assert len(set(names)) == len(names) == len(list(PEERS.iterdir()))


def test_every_file_of_the_table_is_counted_as_it_is() -> None:
    rows = table()
    assert {row.system for row in rows} == SYSTEMS
    assert sorted(row.ours for row in rows) == sorted(PEERS.iterdir())
    counted = [(row.ours.name, lines(row.ours), spread_lines(row.ours)) for row in rows]
    assert [(row.ours.name, row.short, row.spread) for row in rows] == counted
    assert all(row.short <= row.spread < row.long for row in rows)


def test_the_comparison_has_the_least_and_the_most_of_these_counts() -> None:
    rows = table()
    short, spread = sorted(row.short for row in rows), sorted(row.spread for row in rows)
    said = f"{short[0]} to {short[-1]}, and {spread[0]} to {spread[-1]} with a field on each line"
    assert said in COMPARISON.read_text()


def test_each_example_names_the_file_that_it_stands_for() -> None:
    for row in table():
        head = " ".join(line.lstrip("# ") for line in row.ours.read_text().splitlines() if line.startswith("#"))
        assert row.theirs.rpartition("/")[2] in head, row.ours.name
        assert head.startswith(f"{row.system}: "), row.ours.name


def test_every_field_that_the_guide_names_exists() -> None:
    known = set(leaves())
    named = fields_named()
    assert len(named) > 25
    unknown = {
        name
        for name in named
        if not any(leaf == name or leaf.startswith(f"{name}.") or name.startswith(f"{leaf}.") for leaf in known)
    }
    assert unknown == set()


def test_a_wrong_count_would_be_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = table()[0]
    wrong = tmp_path / "migrate.md"
    wrong.write_text(GUIDE.read_text().replace(f") | {row.short}, ", f") | {row.short + 1}, ", 1))
    monkeypatch.setattr(f"{__name__}.GUIDE", wrong)
    assert table()[0].short != lines(row.ours)
