"""The packed chart as helm reads it: it is linted, and the manifests of the release are what it renders."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.chart import bundle, programs
from tests.chart.charts import Helm, Refused


class Unlike(Exception):
    """The packed chart is not what the release says it is; the message names the way out."""


def check(chart: Path, installed: Path) -> None:
    """Raise ``Unlike`` unless helm takes ``chart`` and renders the manifests ``installed`` from it."""
    with tempfile.TemporaryDirectory() as home:
        helm = Helm(programs.program("helm"), Path(home))
        try:
            helm.run("lint", str(chart), "--strict")
            rendered = bundle.render(helm, chart)
        except Refused as error:
            raise Unlike(f"helm refuses {chart.name}: {error}") from error
    if rendered != installed.read_text(encoding="utf-8"):
        raise Unlike(f"{installed.name} is not what {chart.name} renders: run `make bundle` and commit what it writes")
