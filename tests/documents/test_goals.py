"""The page of goals: commands that exist, files that are there, and figures that are those of the pages it links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.__main__ import BENCHMARKS
from e2e.gpu.variants import VARIANTS
from tests.documents.figures import differing

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "goals.md"
GOALS = [f"G{number}" for number in range(1, 11)]
_VERSION = re.compile(r"(?:vLLM|kvcached) \d[\d.]*\d")
_LINKED = re.compile(r"(.*?)\[[^\]]+\]\(([^)]+)\)")


def _sections() -> dict[str, list[str]]:
    """By goal: aim, what shows it, latest, state."""
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for part in parts:
        heading, *paragraphs = part.strip().split("\n\n")
        if (goal := heading.partition(":")[0]) in GOALS:
            found[goal] = [" ".join(paragraph.split()) for paragraph in paragraphs]
    return found


ROWS = _sections()
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


def test_every_goal_has_its_section_and_its_state_is_that_of_the_table_above() -> None:
    assert list(ROWS) == GOALS
    for goal, (aim, shown, latest, state) in ROWS.items():
        assert (aim[:8], shown[:13], latest[:11]) == ("**Aim.**", "**Shown by.**", "**Latest.**"), goal
        table = re.search(rf"^\| \[{goal}\]\(#[a-z0-9-]+\) \| [^|]+ \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
        assert table is not None, goal
        assert state.startswith(f"**{table[1]}.**"), goal


def test_every_link_of_the_table_leads_to_its_section() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    }
    assert set(re.findall(r"\(#([a-z0-9-]+)\)", PAGE.read_text())) <= anchors


@pytest.mark.parametrize("goal", GOALS)
def test_each_command_exists(goal: str) -> None:
    commands = re.findall(r"`([^`]+)`", ROWS[goal][1])
    assert commands
    assert [found for found in map(fault, commands) if found] == []


def said(goal: str) -> list[tuple[str, str]]:
    """What the two last cells of a row say before each link, and the page or file that is linked there."""
    return [
        (_VERSION.sub("", text), (PAGE.parent / link.partition("#")[0]).read_text())
        for cell in ROWS[goal][2:]
        for text, link in _LINKED.findall(cell)
    ]


@pytest.mark.parametrize("goal", GOALS)
def test_figures_are_those_of_the_page_that_is_linked_behind_them(goal: str) -> None:
    wrong = [number for text, source in said(goal) for number in differing(text, source)]
    assert wrong == []


def test_shares_of_a_time_are_those_of_the_times_beside_them() -> None:
    lists = re.search(r"((?:[\d.]+ / )+[\d.]+) ms staged against (.+?) ms, so ((?:1/\d+,? ?)+)", ROWS["G1"][2])
    assert lists is not None
    staged, stock = ([float(one) for one in lists[number].split(" / ")] for number in (1, 2))
    shares = [int(one) for one in re.findall(r"1/(\d+)", lists[3])]
    assert len(staged) == len(stock) == len(shares) == 4
    # The times are rounded.
    assert all(abs(slow / fast - share) < 1 for fast, slow, share in zip(staged, stock, shares, strict=True))


def constants(file: str) -> dict[str, int]:
    found = re.findall(
        r"^(?:_)?([A-Z]+(?:, _?[A-Z]+)*) = ([\d_]+(?:, [\d_]+)*)$", (ROOT / file).read_text(), re.MULTILINE
    )
    pairs = [zip(names.split(", "), values.split(", "), strict=True) for names, values in found]
    return {name.lstrip("_"): int(value) for several in pairs for name, value in several}


def test_figures_without_a_page_are_those_of_the_tests_that_show_them() -> None:
    sent = constants("e2e/local/test_2_guard.py")
    each = sent["BATCH"] * sent["BATCHES"]
    assert f"0 of {3 * each:,}: {each} each to the router, to prefill and to decode" in ROWS["G9"][2]
    assert f"0 of {constants('tests/connector/store/test_wrong_bytes.py')['READS']:,} in each" in ROWS["G10"][2]


def test_what_is_open_is_said_at_the_end() -> None:
    unmet = [goal for goal in GOALS if ROWS[goal][3].startswith("**Open.**")]
    assert all(ROWS[goal][3].startswith(("**Open.**", "**Met")) for goal in GOALS)
    below = PAGE.read_text().rpartition("\n\n")[2]
    assert re.findall(r"\bG\d+", below) == unmet
