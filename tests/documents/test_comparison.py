"""The comparison names what shows each line about us, and a source for each line about another system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "comparison.md"
PEERS = ("AIBrix", "production-stack", "kthena", "KServe", "llm-d", "Dynamo", "RBG")
VERDICTS = ("Yes", "Partly", "No:", "8 to 19", "one command")
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
    assert [path for path in named if not (ROOT / path).exists()] == []


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
    assert all((ROOT / path).exists() for path in ours)
