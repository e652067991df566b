"""The commands of the README and the laptop's quick start, in order, by a shell and with real engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.local.stage import DOWN_SECONDS, UP_SECONDS, Stage
from tests.documents.lanes import of_lane
from tests.documents.pages import ROOT, shown
from tests.documents.session import Session

PAGES = of_lane("local")


@pytest.fixture
def session(stage: Stage, qwen3: Path, tmp_path: Path) -> Iterator[Session]:
    """A reader's shell in the checkout. Services have a folder of their own, so that none but these is stopped."""
    stage.clear()
    with Session(ROOT, {"KVSERVING_STATE_DIR": str(tmp_path / "state")}) as shell:
        yield shell
    with Session(ROOT, {"KVSERVING_STATE_DIR": str(tmp_path / "state")}) as shell:
        left = shell.run(".venv/bin/kvserving down --all", DOWN_SECONDS)
    assert left.printed.strip() == "nothing runs", "the page leaves something running"


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_the_commands_of_a_page_do_what_it_says(page: Path, session: Session) -> None:
    for block, how in PAGES[page]:
        session.follow(block, how, shown(page), UP_SECONDS)


def test_the_pages_that_newcomers_read_are_run() -> None:
    assert {"README.md", "docs/quickstart-laptop.md"} <= {shown(page) for page in PAGES}
