"""The table of goals: commands that exist, files that are there, and figures that are those of the pages it links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.__main__ import BENCHMARKS
from e2e.gpu.variants import VARIANTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "goals.md"
GOALS = [f"G{number}" for number in range(1, 11)]
_VERSION = re.compile(r"(?:vLLM|kvcached) \d[\d.]*\d")
_LINKED = re.compile(r"(.*?)\[[^\]]+\]\(([^)]+)\)")


def _rows() -> dict[str, list[str]]:
    cells = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.read_text().splitlines())
    return {row[0]: row[1:] for row in cells if row[0] in GOALS}


ROWS = _rows()
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def fault(command: str) -> str | None:
    """Why there is no such command or file; None where there is."""
    match command.split():
        case ["make", target, *rest]:
            named = re.search(r"--variants (\S+)", " ".join(rest))
            unknown = set(named[1].split(",")) - set(VARIANTS) if named else set()
            return f"unknown: {target} {unknown}" if target not in TARGETS or unknown else None
        case ["python", "-m", "benchmarks", name]:
            return None if name in BENCHMARKS else f"no benchmark {name}"
        case ["python", "-m", "e2e.gpu.first_tokens"]:
            return None
        case [path] if path.endswith(".py"):
            file = ROOT / path
            return None if file.exists() and "\ndef test_" in file.read_text() else f"no tests in {path}"
    return f"no command: {command}"


@pytest.mark.parametrize(
    "command",
    ["make e2e-none", "make e2e-gpu LANE='--variants none'", "python -m benchmarks none", "tests/none.py", "kvserving"],
)
def test_a_command_that_is_none_is_seen(command: str) -> None:
    assert fault(command)


def test_every_goal_has_its_row() -> None:
    assert list(ROWS) == GOALS
    assert {len(row) for row in ROWS.values()} == {4}


@pytest.mark.parametrize("goal", GOALS)
def test_each_command_exists(goal: str) -> None:
    commands = re.findall(r"`([^`]+)`", ROWS[goal][1])
    assert commands
    assert [found for found in map(fault, commands) if found] == []


@pytest.mark.parametrize("goal", GOALS)
def test_figures_are_those_of_the_page_that_is_linked_behind_them(goal: str) -> None:
    for text, link in _LINKED.findall(ROWS[goal][2]):
        page = PAGE.parent / link.partition("#")[0]
        said = re.findall(r"\d+\.\d+", _VERSION.sub("", text))
        assert [figure for figure in said if figure not in page.read_text()] == []


def test_what_is_open_is_said_below_the_table() -> None:
    unmet = [goal for goal in GOALS if ROWS[goal][3].startswith("**Open.**")]
    assert all(ROWS[goal][3].startswith(("**Open.**", "**Met")) for goal in GOALS)
    below = PAGE.read_text().rpartition("\n\n")[2]
    assert re.findall(r"\bG\d+", below) == unmet
