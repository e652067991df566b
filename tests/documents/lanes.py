"""Which blocks each lane runs: those that are marked so, on any page."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.documents.marks import COMMANDS, NotRun, Run, parse
from tests.documents.pages import PAGES, Block, blocks, shown


class Marked(NamedTuple):
    """A block of commands and what its mark says."""

    block: Block
    how: Run | NotRun | None


def of_page(page: Path) -> list[Marked]:
    """Return a page's command blocks, in order. Raises ``ValueError`` with page and line for a bad mark or fence."""
    try:
        opened = blocks(page.read_text())
    except ValueError as error:
        raise ValueError(f"{shown(page)}, {error}") from None
    found = []
    for block in opened:
        if block.language in COMMANDS:
            try:
                found.append(Marked(block, parse(block.mark)))
            except ValueError as error:
                raise ValueError(f"{shown(page)}, line {block.line}: {error}") from None
    return found


def of_lane(lane: str) -> dict[Path, list[tuple[Block, Run]]]:
    """Return what a lane runs, by page; the blocks of a page follow each other in one shell."""
    pages = {
        page: [(block, how) for block, how in of_page(page) if isinstance(how, Run) and how.lane == lane]
        for page in PAGES
    }
    return {page: found for page, found in pages.items() if found}
