"""That ``deploy/install.yaml`` was rendered from the chart as it is, without helm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.chart import bundle
from tests.chart.charts import CHART, ROOT


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHART, tmp_path / "chart"))


def test_the_bundle_is_of_the_present_chart(chart: Path) -> None:
    assert bundle.is_current(ROOT / "deploy"), "run `make bundle`"
    assert bundle.is_current(ROOT / "deploy", chart), "where the chart lies does not count"


@pytest.mark.parametrize("file", ["Chart.yaml", "values.yaml", "templates/crds.yaml", "templates/_rules.tpl"])
def test_a_bundle_of_a_chart_that_has_changed_is_found(chart: Path, file: str) -> None:
    (chart / file).write_text((chart / file).read_text().replace(":", ": ", 1))
    assert not bundle.is_current(ROOT / "deploy", chart)


def test_a_template_more_or_less_is_found(chart: Path) -> None:
    (chart / "templates" / "more.yaml").write_text("")
    assert not bundle.is_current(ROOT / "deploy", chart)


def test_the_command_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / bundle.FILE_NAME).write_text("# Rendered\n# Chart: sha256 0\n")
    assert bundle.main(["--current", str(tmp_path)]) == 1
    assert "run `make bundle`" in capsys.readouterr().err
    assert bundle.main(["--current", str(ROOT / "deploy")]) == 0
