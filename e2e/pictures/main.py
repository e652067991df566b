"""The pictures of the documents, made from real runs. ``scripts/pictures`` runs it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from e2e.controlplane import build
from e2e.local.real_model import NoEngine, engine_python
from e2e.operator.running import ROOT
from e2e.pictures import browser, dashboards, page, programs, terminal, timeline
from e2e.pictures.answers import Excuses, NoData, Span, answers
from e2e.pictures.laptop import print_tables
from e2e.pictures.prometheus import RATE_INTERVAL, SCRAPE_SECONDS
from e2e.pictures.rolling import NOTE, record
from e2e.pictures.serving import NAME, NAMESPACE, Run, run_for_dashboards

PICTURES = ROOT / "docs" / "pictures"
DASHBOARDS = ROOT / "charts" / "kvserving-operator" / "dashboards"
MOST_BYTES = 600_000
"""Of all pictures together: everyone who clones the repository has them."""
EXCUSES: dict[str, Excuses] = {
    "fleet": {},
    "service": {("Refused per minute", "scheduler: {{reason}}"): "only what passed the guard comes to it"},
    "cache": {},
}
"""Queries that may have no data in this run, by dashboard, and why."""
_BEFORE_LOAD = 15.0
_DRAWN = "drawn by scripts/pictures from the dashboard's JSON, not by Grafana"


class TooLarge(Exception):
    """The pictures take more than a repository should carry."""


def of_dashboards(made: Path, scratch: Path) -> None:
    """The three dashboards, and the plugin's tables, of one run with real engines."""
    with run_for_dashboards(scratch, engine_python(), build.programs()) as run:
        for name in EXCUSES:
            of_dashboard(name, run, made)
    for name, printed in zip(("plugin-status-all", "plugin-status"), run.tables, strict=True):
        (made / f"{name}.svg").write_text(terminal.render(printed.lines()))


def of_dashboard(name: str, run: Run, made: Path) -> None:
    """One dashboard: the fleet from the operator's start, those of a service from shortly before the load."""
    begin = run.times.began if name == "fleet" else run.times.loaded - _BEFORE_LOAD
    span = Span(begin, run.times.ended, float(SCRAPE_SECONDS))
    chosen = {} if name == "fleet" else {"namespace": NAMESPACE, "name": NAME}
    dashboard = dashboards.read(DASHBOARDS / f"{name}.json", chosen, RATE_INTERVAL)
    answered = answers(dashboard, run.prometheus, span, EXCUSES[name])
    browser.shoot(page.render(dashboard, answered, span, _DRAWN), page.size(dashboard), made / f"dashboard-{name}.png")


def of_rollout(made: Path, scratch: Path) -> None:
    """A rollout as it goes, and what ``kvserving rollout status`` prints of it."""
    rollout, printed = record(scratch, build.programs())
    conditions = ("Available", "Ready", "TransferVerified")
    (made / "rollout.svg").write_text(timeline.render(rollout, conditions, NOTE))
    (made / "rollout-status.svg").write_text(terminal.render(printed.lines()))


def of_laptop(made: Path, scratch: Path) -> None:
    """What the commands of the README print."""
    for name, printed in print_tables(scratch, engine_python()).items():
        (made / f"{name}.svg").write_text(terminal.render(printed.lines()))


WHAT: dict[str, Callable[[Path, Path], None]] = {
    "dashboards": of_dashboards,
    "rollout": of_rollout,
    "laptop": of_laptop,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the pictures that are asked for, or all."""
    parser = argparse.ArgumentParser(
        prog="scripts/pictures",
        description="Write docs/pictures from real runs: a control plane, the operator, engines, a router, a Valkey "
        "and Prometheus as processes, which it starts and ends. It takes about ten minutes on two free cores, and "
        "8 GiB of memory. It needs chromium, pngquant and prometheus (Debian's packages of these names), Go for the "
        "first build of the control plane, and KVSERVING_ENGINE_PYTHON; `make pictures` sees to the environments.",
    )
    parser.add_argument("what", nargs="*", help=f"which to make: {', '.join(WHAT)}; all by default")
    parser.add_argument("--output", type=Path, default=PICTURES, help="the folder to write to")
    parser.add_argument("--scratch", type=Path, help="a new folder for logs and data; by default one that is removed")
    options = parser.parse_args(arguments)
    if unknown := set(options.what) - set(WHAT):
        parser.error(f"{', '.join(sorted(unknown))}: no such pictures; known: {', '.join(WHAT)}")
    try:
        programs.check()
        with _folder(options.scratch) as scratch:
            options.output.mkdir(parents=True, exist_ok=True)
            for what in options.what or WHAT:
                (scratch / what).mkdir(parents=True)
                WHAT[what](options.output, scratch / what)
        check_size(options.output)
    except (programs.Missing, NoEngine, build.ProgramsMissing, build.BuildFailed) as error:
        parser.error(str(error))
    except (dashboards.CannotDraw, NoData, TooLarge) as error:
        sys.exit(str(error))


def check_size(folder: Path) -> None:
    """Raise ``TooLarge`` when the pictures in a folder take more than ``MOST_BYTES``."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    if sum(sizes.values()) > MOST_BYTES:
        told = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise TooLarge(f"{folder} has {sum(sizes.values()):,} bytes, more than {MOST_BYTES:,}: {told}")


@contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        yield named
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)
