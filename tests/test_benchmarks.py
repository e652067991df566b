"""``python -m benchmarks``: a machine that lacks something loses that table only."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import __main__ as program
from benchmarks import engine_python, performance
from benchmarks.table import NotMeasured, Table


def table() -> Table:
    return Table("A title", "A note.", ("what", "figure"), (("one", "1"),))


def lacking() -> Table:
    raise NotMeasured("there is no valkey-server: install it")


def test_a_benchmark_that_cannot_be_measured_is_left_out_with_one_line_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "BENCHMARKS", {"first": lacking, "second": table})
    monkeypatch.setattr(program, "PAGES", {})
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["benchmarks"])
    assert program.main() == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "first is left out: there is no valkey-server: install it"
    assert "# A title" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["second.md"]
    assert "Made by `make bench, or python -m benchmarks second` on" in (tmp_path / "second.md").read_text()


def test_an_engine_environment_that_is_missing_is_named_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_python, "PYTHON", "/nowhere/python")
    with pytest.raises(NotMeasured, match=r"/nowhere/python: run `make install-engine`"):
        engine_python.command("store_reader")


def test_a_page_is_written_with_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {tmp_path / "page.md": "# A page\n", tmp_path / "a.svg": "<svg/>\n"}
    monkeypatch.setattr(program, "PAGES", {"page": lambda: files})
    monkeypatch.setattr("sys.argv", ["benchmarks", "page"])
    assert program.main() == 0
    assert {path: path.read_text() for path in tmp_path.iterdir()} == files
    assert capsys.readouterr().out == "# A page\n\nwrote a.svg\n"


def test_raw_results_that_are_damaged_are_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw.jsonl").write_text('{"step": "ids"}\n')
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["benchmarks", "performance"])
    assert program.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "raw.jsonl, line 1: no result of the lane, without variant, outcome" in line
