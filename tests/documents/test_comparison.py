"""The comparison names what shows each line about us, and a source for each line about another system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.documents.figures import differing

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "comparison.md"
PEERS = ("AIBrix", "production-stack", "kthena", "KServe", "llm-d", "Dynamo", "RBG")
VERDICTS = ("Yes", "Partly", "No:", "8 to 19", "about 70")
LABELS = ("Yes", "Partly", "Not found", "Not looked for", "Theirs")
UNSOURCED = ("Not found", "Not looked for")


def _rows() -> dict[str, tuple[str, str]]:
    """Topic -> what is said of us, what is said of them."""
    rows = (line.strip("|").split(" | ") for line in PAGE.read_text().splitlines() if "**: " in line and line[0] == "|")
    return {topic.strip(): (ours, theirs) for topic, ours, theirs in rows}


ROWS = _rows()


def _said(theirs: str) -> Iterator[tuple[str, str, bool]]:
    """(peer, label, whether a source or a reason stands behind it) for each peer that a cell names."""
    for label, text in re.findall(r"\*\*([^*]+)\*\*: (.*?)(?=\. \*\*|$)", theirs.strip()):
        plain = re.sub(r"\([^()]*\)", "()", text)
        for name in plain.rstrip(". ").split(", "):
            yield name.removesuffix("()").strip(), label, name.endswith("()")


def _named(text: str) -> list[str]:
    """Paths of the repository among the code of a text."""
    spans = re.findall(r"`([^`/][^`]*)`", text)
    return [span for span in spans if "/" in span or span.endswith(".md")]


def test_there_are_rows() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize("topic", ROWS)
def test_what_shows_a_line_about_us_exists(topic: str) -> None:
    ours, _ = ROWS[topic]
    assert ours.strip().startswith(VERDICTS)
    named = _named(ours)
    assert named, "no file that shows it"
    assert [path for path in named if no_proof(path)] == []


def no_proof(path: str) -> str | None:
    """Why a path shows nothing; None where it does. A folder holds too much to be looked up in."""
    name, _, test = path.partition("::")
    file = ROOT / name
    if not file.is_file():
        return f"{name} is a folder" if file.is_dir() else f"there is no {name}"
    tests = re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    if file.name.startswith("test_") and not tests:
        return f"no test is in {name}"
    return f"{name} has no {test}" if test and test not in tests else None


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("operator/src", "operator/src is a folder"),
        ("tests/none.py", "there is no tests/none.py"),
        ("tests/documents/test_comparison.py::test_none", "tests/documents/test_comparison.py has no test_none"),
        ("tests/documents/test_comparison.py::test_there_are_rows", None),
        ("README.md", None),
    ],
)
def test_a_folder_and_a_test_that_is_not_there_prove_nothing(path: str, why: str | None) -> None:
    assert no_proof(path) == why


@pytest.mark.parametrize("topic", ROWS)
def test_each_system_is_named_once_and_with_a_source(topic: str) -> None:
    _, theirs = ROWS[topic]
    said = list(_said(theirs))
    assert sorted(peer for peer, _, _ in said) == sorted(PEERS)
    assert {label for _, label, _ in said} <= set(LABELS)
    assert [peer for peer, label, sourced in said if not sourced and label not in UNSOURCED] == []


def test_the_systems_have_the_state_that_was_looked_at() -> None:
    states = PAGE.read_text().partition("| System | Looked at")[2].partition("\n\n")[0]
    assert [line.split("|")[1].split(" (")[0].strip() for line in states.splitlines()[2:]] == list(PEERS)


def test_files_that_the_text_names_as_ours_exist() -> None:
    text = PAGE.read_text()
    ahead = text.partition("## Where they are ahead")[2].partition("\n## ")[0]
    ours = [span for span in _named(ahead) if span.startswith("benchmarks/")]
    assert ours
    assert [path for path in ours if no_proof(path)] == []


def test_what_was_measured_of_ours_is_what_the_table_has() -> None:
    [row] = [line for line in PAGE.read_text().splitlines() if line.startswith("| ours |")]
    _, one, rate, memory, writes = (cell.strip() for cell in row.strip("|").split("|"))
    source = (ROOT / "benchmarks" / "results" / "operator-scale.md").read_text()
    seconds = re.search(r"from the first creation \| ([\d.]+) s", source)
    assert seconds is not None
    assert differing(f"{one.partition(']')[0].strip('[')} {memory} {writes}", source) == []
    assert rate == f"{1000 / float(seconds[1]):.1f}"
