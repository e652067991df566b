"""The page names every check with its severity, and no other; every check is asked by a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvserving_operator import cli
from kvserving_operator.doctor import checks

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
MAKERS = {"error", "warning", "info", "make", "Finding"}


def names() -> set[str]:
    """Names of all checks in the code; those that end in a reason are given as ``event-*``."""
    return set(severities())


def severities() -> dict[str, set[str]]:
    """The words that make each check's findings: a severity, or one that is chosen as it runs (MAKERS)."""
    found: dict[str, set[str]] = {}
    for file in Path(str(checks.__file__)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                for name in _texts(node.args[1] if node.func.id == "Finding" else node.args[0]):
                    found.setdefault(name, set()).add(node.func.id)
    return found


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        first = node.values[0]
        assert isinstance(first, ast.Constant)
        assert isinstance(first.value, str)
        yield f"{first.value}*"
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        raise AssertionError(f"the name of a check is no text: {ast.unparse(node)}")


def rows() -> list[list[str]]:
    table = PAGE.read_text().partition("## What is looked for")[2]
    return [re.findall(r"`([a-z0-9*-]+)`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")]


def test_the_page_has_every_check_once_and_no_other() -> None:
    listed = [name for row in rows() for name in row]
    assert sorted(listed) == sorted(set(listed))
    assert names() - set(listed) == set(), "findings without a row in docs/doctor.md"
    assert set(listed) - names() == set(), "rows of docs/doctor.md for findings that are not there"


def test_a_severity_stands_for_each_check_of_a_row() -> None:
    table = PAGE.read_text().partition("## What is looked for")[2]
    for line in (line for line in table.splitlines() if line.startswith("| `")):
        cells = line.split("|")
        checks_of_row, severities = re.findall(r"`[a-z0-9*-]+`", cells[1]), cells[2].split(",")
        if "while" not in cells[2]:
            assert len(checks_of_row) == 1 or len(severities) in (1, len(checks_of_row)), line


def test_the_severities_are_those_of_the_code() -> None:
    table, made = PAGE.read_text().partition("## What is looked for")[2], severities()
    wrong = {}
    for line in (line for line in table.splitlines() if line.startswith("| `")):
        cells = line.split("|")
        listed, words = re.findall(r"`([a-z0-9*-]+)`", cells[1]), [word.strip() for word in cells[2].split(",")]
        for at, name in enumerate(listed):
            told = set(words) if len(listed) == 1 else {words[at if len(words) > 1 else 0]}
            if made[name] <= {"error", "warning", "info"} and told != made[name]:
                wrong[name] = (told, made[name])
    assert wrong == {}


def test_the_printed_example_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command, _, printed = PAGE.read_text().partition("$ kvserving ")[2].partition("```")[0].partition("\n")
    assert command == "doctor examples/gpu-host.yaml --only findings"
    assert cli.run(["doctor", str(PAGE.parents[1] / "examples" / "gpu-host.yaml"), "--only", "findings"]) == 0
    assert _steady(capsys.readouterr().out) == _steady(printed)


def _steady(text: str) -> str:
    """Without revision and version, which follow the newest engine."""
    return re.sub(r"revision \w+  vLLM .*", "", text)


def test_every_check_is_asked_by_a_test() -> None:
    asked = "\n".join(file.read_text() for file in Path(__file__).parent.glob("test_*_checks.py"))
    assert [name for name in names() if f'"{name.rstrip("*")}' not in asked] == [], (
        "findings that no test asks for: add one to tests/doctor/test_*_checks.py"
    )
