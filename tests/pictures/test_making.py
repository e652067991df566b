"""Terminals, targets and sizes of the pictures, and what is told when something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.operator.running import ROOT
from e2e.pictures import main as program
from e2e.pictures.commands import Printed, without_folders
from e2e.pictures.programs import Missing, check
from e2e.pictures.prometheus import target_of
from e2e.pictures.terminal import render
from tests.pictures.support import elements


def test_a_terminal_shows_every_line_in_its_column() -> None:
    printed = Printed("kvserving status", 0, "laptop  ready\n\n  POD  <a & b>\n")
    texts = {element.text: element.attrib for element in elements(render(printed.lines()), "text")}
    assert list(texts) == ["$ kvserving status", "laptop  ready", "POD  <a & b>"]
    left, indented = (float(texts[text]["x"]) for text in ("laptop  ready", "POD  <a & b>"))
    column = float(texts["laptop  ready"]["textLength"]) / len("laptop  ready")
    assert indented - left == pytest.approx(2 * column)


def test_a_line_longer_than_the_terminal_goes_on_in_the_next() -> None:
    assert Printed("c", 0, "abcdefg\nhi").lines(3) == ["$ c", "abc", "def", "g", "hi"]


def test_folders_of_this_machine_are_not_shown() -> None:
    assert without_folders(f"{ROOT}/examples and {Path.home()}/.cache") == "~/kvserving/examples and ~/.cache"


def _pod(role: str, **status: str) -> dict[str, object]:
    names = ("metrics", "http") if role == "router" else ("http",)
    ports = [{"name": name, "containerPort": 8000 + number} for number, name in enumerate(names)]
    marks = {"kvserving.dev/name": "qwen", "kvserving.dev/role": role, "other": "x"}
    metadata = {"namespace": "prod", "name": f"qwen-{role}", "labels": marks}
    return {"metadata": metadata, "spec": {"containers": [{"ports": ports}]}, "status": status}


@pytest.mark.parametrize(("role", "port"), [("decode", 8000), ("router", 8000)])
def test_a_pod_is_scraped_at_its_port_of_metrics_with_the_labels_of_its_monitor(role: str, port: int) -> None:
    found = target_of(_pod(role, podIP="127.9.0.1"))
    assert found is not None
    assert found[0] == f"127.9.0.1:{port}"
    assert found[1] == {
        "__job": "pods",
        "namespace": "prod",
        "pod": f"qwen-{role}",
        "kvserving_dev_name": "qwen",
        "kvserving_dev_role": role,
    }
    assert target_of(_pod(role)) is None


def test_a_missing_program_is_told_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing, match="no prometheus: install it, on Debian by `apt-get install prometheus`"):
        check()


def test_unknown_pictures_are_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["rollout", "portrait"])
    assert "portrait: no such pictures; known: dashboards, rollout, laptop" in capsys.readouterr().err


def test_the_committed_pictures_are_small_and_each_is_shown_on_a_page() -> None:
    program.check_size(program.PICTURES)
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    assert [path.name for path in program.PICTURES.iterdir() if f"pictures/{path.name}" not in pages] == []


def test_pictures_that_are_too_large_are_refused(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(bytes(program.MOST_BYTES + 1))
    with pytest.raises(program.TooLarge, match=r"large\.png 600,001"):
        program.check_size(tmp_path)
