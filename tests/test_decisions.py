"""The list of decisions: each record is in it, under its number and its title."""

from __future__ import annotations

import re
from pathlib import Path

RECORDS = Path(__file__).parents[1] / "docs" / "adr"


def test_each_record_is_listed_under_its_title() -> None:
    listed = re.findall(r"^\| \[(\d+)\]\(([^)]+)\) \| (.+) \|$", (RECORDS / "README.md").read_text(), re.MULTILINE)
    written = []
    for path in sorted(RECORDS.glob("[0-9]*.md")):
        title = re.match(r"# (\d+)\. (.+)\n", path.read_text())
        assert title is not None, path.name
        assert int(path.name[:4]) == int(title[1]), path.name
        written.append((title[1], path.name, title[2]))
    assert listed == written
