"""The generated pages are those of the code, and a page that is not is told with the command that mends it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvserving_operator.reference import series
from kvserving_operator.reference.__main__ import main, pages
from kvserving_operator.reference.markdown import anchor, table

DOCS = Path(__file__).parents[2] / "docs"
_LINK = re.compile(r"\]\(([\w.-]*)#([^)]+)\)")


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


def test_the_pages_of_the_documentation_are_those_of_the_code(made: dict[str, str]) -> None:
    assert {name: (DOCS / name).read_text(encoding="utf-8") for name in made} == made


def test_the_same_code_makes_the_same_pages(made: dict[str, str]) -> None:
    assert pages() == made


@pytest.mark.parametrize("name", ["operator-reference.md", "reference-fields.md", "reference-metrics.md"])
def test_a_page_that_differs_is_told_with_the_command_that_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["--write", str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / name).write_text("", encoding="utf-8")
    assert main(["--check", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"{tmp_path / name} differs")
    assert f"run `make generate` or `python -m kvserving_operator.reference --write {tmp_path}`" in told


def test_links_between_the_pages_lead_to_a_heading(made: dict[str, str]) -> None:
    headings = {
        name: [anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
        for name, text in made.items()
    }
    found = [(name, target or name, part) for name, text in made.items() for target, part in _LINK.findall(text)]
    assert found
    assert [link for link in found if link[2] not in headings[link[1]]] == []
    assert [name for name, several in headings.items() if len(set(several)) != len(several)] == []


def test_every_row_of_a_table_has_as_many_cells_as_its_header(made: dict[str, str]) -> None:
    for name, text in made.items():
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            cells = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(cells) == 1, f"{name}: {block.splitlines()[0]}"


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert table(("a",), [("x|y",)]).splitlines()[-1] == "| x\\|y |"


def test_without_the_connector_the_reason_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(series.NoConnector, match="checkout"):
        series.declared(tmp_path)
    package = tmp_path / "kvserving_connector"
    package.mkdir()
    (package / "declared.py").write_text("raise ValueError('no series')\n", encoding="utf-8")
    with pytest.raises(series.NoConnector, match="no series"):
        series.declared(tmp_path)
    monkeypatch.setattr(series, "SOURCES", tmp_path / "none")
    assert main(["--write", str(tmp_path)]) == 1
    assert "has no kvserving_connector" in capsys.readouterr().err
