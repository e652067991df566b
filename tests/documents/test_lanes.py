"""Every command block of the README and the quick starts is run in the lane that its mark names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.documents.lanes import of_lane, of_page
from tests.documents.marks import WAY_OUT, NotRun, Run, parse, replaced
from tests.documents.pages import PAGES, QUICK_STARTS, README, ROOT, shown
from tests.documents.session import Session, substituted
from tests.documents.shell import commands

SECONDS = 240
CI = ROOT / ".ci" / "run"


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("", None),
        ("run: local", Run("local")),
        ("run: cluster; NAME=tiny; output", Run("cluster", {"NAME": "tiny"}, output=True)),
        ("not run: it needs a registry", NotRun("it needs a registry")),
    ],
)
def test_a_mark_says_where_a_block_is_run_or_why_not(mark: str, said: object) -> None:
    assert parse(mark) == said


@pytest.mark.parametrize(
    "mark", ["run", "run: laptop", "run:", "not run:", "runs: local", "run: local; fast", "yaml: spec"]
)
def test_a_mark_that_says_nothing_known_is_refused(mark: str) -> None:
    with pytest.raises(ValueError, match=r"mark|reason"):
        parse(mark)


def test_names_are_replaced_as_words() -> None:
    assert replaced("wait kvs/NAME NAMES MY-NAME", {"NAME": "tiny", "OTHER": "x"}) == (
        "wait kvs/tiny NAMES MY-NAME",
        {"NAME"},
    )


@pytest.mark.parametrize("page", [README, *QUICK_STARTS], ids=shown)
def test_every_command_block_is_run_or_says_why_not(page: Path) -> None:
    found = of_page(page)
    assert found
    assert [f"the block at line {block.line} has no mark" for block, how in found if how is None] == [], WAY_OUT


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_marks_are_right(page: Path) -> None:
    for block, how in of_page(page):
        found = commands(block.text)
        if isinstance(how, Run):
            assert substituted(found, how), f"the block at line {block.line} holds no command"
            assert not how.output or any(command.output for command in found), f"line {block.line} shows no output"


def test_what_is_marked_as_of_ci_is_called_by_it() -> None:
    called = {line.strip() for line in CI.read_text().splitlines()}
    marked = [command for page in of_lane("ci").values() for block, _ in page for command in commands(block.text)]
    assert marked
    missing = [command.text for command in marked if command.text.partition("#")[0].strip() not in called]
    assert missing == [], "give these lines to .ci/run, or mark the block by the lane that runs it"


@pytest.mark.parametrize("page", of_lane("unit"), ids=shown)
def test_blocks_that_need_no_engine_run(page: Path, tmp_path: Path) -> None:
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "KVSERVING_STATE_DIR": str(tmp_path)}
    with Session(ROOT, environment) as session:
        for block, how in of_lane("unit")[page]:
            session.follow(block, how, shown(page), SECONDS)
