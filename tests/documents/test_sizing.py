"""The figures that the page of sizing tells in words are those that a sizing is computed with."""

from __future__ import annotations

import re

import click
from tests.documents.figures import differing
from tests.documents.pages import DOCS, blocks, sections

from kvserving_operator.cli import kvserving
from kvserving_operator.sizing.demand import UTILISATION, WORKSPACE_BYTES, Demand
from kvserving_operator.sizing.speed import DECODE_SHARE

PAGE = (DOCS / "sizing.md").read_text()
PROSE = " ".join("\n".join(section.text for section in sections(PAGE)).split())
MOST_DEVICES = Demand(1, 1, 1.0).devices_per_node
CLAIMS = (
    f"less the weights of a rank and {WORKSPACE_BYTES / 1e9:g} GB",
    f"how far replicas are filled ({UTILISATION:g}), and the most devices of one ({MOST_DEVICES})",
    f"what one takes at {UTILISATION:g} of its capacity",
    f"There is no table of decode yet: {DECODE_SHARE:g} of the bandwidth",
    # Not constants: a product and a sum for each parameter, the model that was measured, and what no reuse is.
    "2 operations for each parameter",
    "Qwen3 of 4 billion parameters",
    "where `--reused` is above 0",
)
WORDS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten"}


def test_each_figure_in_words_is_the_constant() -> None:
    assert [claim for claim in CLAIMS if claim not in PROSE] == []


def test_no_figure_stands_in_the_prose_beside_these() -> None:
    rest = PROSE
    for claim in CLAIMS:
        rest = rest.replace(claim, "")
    assert differing(rest, "") == []


def test_the_horizons_are_the_defaults_of_the_options() -> None:
    plan = kvserving.get_command(click.Context(kvserving), "plan")
    assert plan is not None
    told = {option.name: option.help or "" for option in plan.params if isinstance(option, click.Option)}
    minutes = []
    for name in ("l1_horizon", "l2_horizon"):
        default = re.search(r"Default: (\d+)m", told[name])
        assert default is not None
        minutes.append(WORDS[int(default[1])])
    assert f"{minutes[0]} minute and {minutes[1]}, where `--reused`" in PROSE


def test_as_many_facts_are_asked_for_as_the_example_gives() -> None:
    [given] = [block.text for block in blocks(PAGE) if "--fact kind" in block.text]
    assert f"{WORDS[given.count('--fact ')]} facts are needed" in PROSE
