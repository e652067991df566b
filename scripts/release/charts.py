"""The packed chart as helm reads it: it is linted, and the manifests of the release are what it renders."""

from __future__ import annotations

import tarfile
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
            # Unpacked: the bundle has a digest of the chart's files.
            with tarfile.open(chart) as packed:
                packed.extractall(home, filter="data")
                [name] = {entry.name.partition("/")[0] for entry in packed}
            rendered = bundle.render(helm, Path(home, name))
        except Refused as error:
            raise Unlike(f"helm refuses {chart.name}: {error}") from error
    if rendered != installed.read_text(encoding="utf-8"):
        raise Unlike(f"{installed.name} is not what {chart.name} renders: run `make bundle` and commit what it writes")
