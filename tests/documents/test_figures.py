"""A figure that was measured has the command that measured it and the hardware beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.documents.figures import WAY_OUT, commands, differing, figures, unsourced
from tests.documents.known import faults
from tests.documents.pages import PAGES, ROOT, Section, links, sections, shown
from tests.documents.shell import calls

HISTORY = {("0008-creation-by-apply-with-a-version.md", "89.8")}
"""Figures of what is no longer so, which no result has."""
RESULTS = tuple(sorted((ROOT / "benchmarks" / "results").glob("*.md")))


@pytest.mark.parametrize(
    ("text", "figure"),
    [
        ("it takes 7 ms", "7 ms"),
        ("about 6.35 GB/s", "6.35 GB/s"),
        ("2,715 MiB/s", "2,715 MiB/s"),
        ("back after 1.7 s", "1.7 s"),
        ("40 tokens a second, 12 tok/s", "40 tokens a second"),
        ("3 times faster", "3 times faster"),
        ("1.5x faster", "1.5x faster"),
        ("36 % slower", "36 % slower"),
    ],
)
def test_what_looks_measured(text: str, figure: str) -> None:
    assert unsourced(Section("", text, 1))[0] == figure


@pytest.mark.parametrize(
    "text",
    ["waits for 30 s", "8 GB of memory", "three minutes", "up to 5 times", "`--delay 5 ms`", "at 80 %", "500 (ms)"],
)
def test_settings_bounds_and_sizes_do_not(text: str) -> None:
    assert figures(Section("", text, 1)) == []


@pytest.mark.parametrize(
    ("source", "enough"),
    [
        ("Measured by `make bench` on two cores of an AMD EPYC.", True),
        ("The times, measured by\n`make e2e-gpu` on 2 H200 GPUs, are", True),
        ("([measured](../benchmarks/results/store-reads.md))", True),
        ("<!-- not measured: a setting -->", True),
        ("It was measured by hand on two cores.", True),
        ("Measured on two cores.", False),
        ("Measured by `make bench`.", False),
        ("Measured by us on two cores.", False),
        ("<!-- not measured: -->", False),
    ],
)
def test_a_source_names_command_and_hardware(source: str, enough: bool) -> None:
    assert (unsourced(Section("", f"It takes 7 ms.\n{source}\n", 1)) == []) is enough


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_measured_figures_name_their_command_and_hardware(page: Path) -> None:
    found = {section.heading: unsourced(section) for section in sections(page.read_text())}
    assert {heading: figures for heading, figures in found.items() if figures} == {}, WAY_OUT


@pytest.mark.parametrize("page", RESULTS, ids=shown)
def test_pages_of_results_name_their_command_and_hardware(page: Path) -> None:
    found = [command for section in sections(page.read_text()) for command in commands(section)]
    assert found != [], "a page of results says 'Made by `COMMAND` on HARDWARE'"


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=shown)
def test_the_commands_that_measured_exist(page: Path) -> None:
    found = [command.replace(", or ", "; ") for section in sections(page.read_text()) for command in commands(section)]
    assert [fault for command in found for words in calls(command) for fault in faults(words, whole=False)] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("in 134 MiB and 48.6 s for 11,000", []),
        ("in 999 MiB and 48.7 s for 11,001", ["999", "48.7", "11,001"]),
        ("42 ms, 4 MiB, 1/4 of vLLM on an H200, `7`", []),
        ("0.1 to 0.90", ["0.90"]),
    ],
)
def test_a_figure_is_looked_up_in_its_source(text: str, wrong: list[str]) -> None:
    assert differing(text, "| 77, 134 MiB | 48.6 s | 11,000 | 42.2 | 4096 KiB | 0.10 |") == wrong


def beside(page: Path) -> list[tuple[str, str]]:
    """Sentences and cells of a page with a link to a page of results, and the text of that page."""
    text = " ".join("\n".join(section.text for section in sections(page.read_text())).split())
    return [
        (part, (page.parent / link).read_text())
        for part in re.split(r"(?<=[.:;]) |\|", text)
        for link in re.findall(r"\]\(((?:\.\./)*benchmarks/results/[\w-]+\.md)", part)
    ]


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_figures_beside_a_link_to_results_are_those_of_the_results(page: Path) -> None:
    wrong = [number for part, source in beside(page) for number in differing(part, source)]
    unknown = [number for number in wrong if (page.name, number) not in HISTORY]
    assert unknown == [], "the page of results that is linked beside these has no such number: write those that it has"


def test_each_result_has_a_reader() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links(page.read_text())}
    assert [shown(page) for page in RESULTS if page not in linked] == [], "link to these from a page of docs/"
    # Raw results become a page, which names them.
    made = (ROOT / "docs" / "performance.md").read_text()
    raw = [file.name for file in sorted(RESULTS[0].parent.iterdir()) if file.suffix != ".md"]
    assert [name for name in raw if f"`{name}`" not in made] == [], "name these in docs/performance.md"
