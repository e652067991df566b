"""Fixtures of the chart's tests; helm and promtool are built before any test: a timeout would end the first build."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from e2e.controlplane.build import BuildFailed, ProgramsMissing
from tests.chart import programs
from tests.chart.charts import Helm
from tests.kept import kept

ROOT = Path(__file__).parents[2]
_UNAVAILABLE = pytest.StashKey[dict[programs.Name, str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the tests of this run use."""
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if session.config.option.collectonly or _UNAVAILABLE in session.config.stash:
        return
    missing = session.config.stash.setdefault(_UNAVAILABLE, {})
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")

    def say(line: str) -> None:
        if reporter is not None:
            reporter.write_line(line)

    for name in programs.NAMES:
        if name not in used:
            continue
        try:
            programs.program(name, say=say)
        except ProgramsMissing as error:
            if os.environ.get("CI"):
                pytest.exit(f"CI never skips the chart's tests: {error}", returncode=1)
            say(f"the chart's tests with {name} are skipped: {error}")
            missing[name] = str(error)
        except BuildFailed as error:
            pytest.exit(str(error), returncode=1)


def scan_folder() -> Path:
    """The folder of the Makefile for these pins of checkov, which other checkouts share."""
    pins = hashlib.sha256((ROOT / "requirements" / "scan.txt").read_bytes()).hexdigest()
    return kept() / f"scan-{pins[:12]}"


def _program(request: pytest.FixtureRequest, name: programs.Name) -> Path:
    if reason := request.config.stash.get(_UNAVAILABLE, {}).get(name):
        pytest.skip(reason)
    return programs.program(name)


@pytest.fixture(scope="session")
def helm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm, with folders of its own, or a skip where it cannot be had."""
    return Helm(_program(request, "helm"), tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def promtool(request: pytest.FixtureRequest) -> Path:
    """Path of promtool, or a skip where it cannot be had."""
    return _program(request, "promtool")


@pytest.fixture(scope="session")
def checkov() -> Path:
    """Path of checkov: that of ``make e2e-chart``, or the one of PATH; a skip where there is none."""
    ours = scan_folder() / "bin" / "checkov"
    found = str(ours) if ours.is_file() else shutil.which("checkov")
    if found is None:
        pytest.skip("no checkov: `make e2e-chart` installs it")
    return Path(found)
