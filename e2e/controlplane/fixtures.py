"""Fixtures and hooks of every lane with a control plane; a lane's ``conftest.py`` imports them by name.

``cluster`` is shared by all tests of a run (the cluster of ``KUBECONFIG``, if that is set); ``control_plane`` is always
one of ours, shared too; ``own_control_plane`` is for one test that stops or restarts its parts.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from e2e.controlplane import build, controlplane
from e2e.controlplane.cluster import Cluster, existing
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fault_proxy import FaultProxy

CRDS = sorted((Path(__file__).parents[2] / "crds").glob("*.yaml"))
_SECTION = "control plane"
_UNAVAILABLE = pytest.StashKey[str]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the programs before any test runs: a test's timeout would end the first build."""
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "programs" in used or ("cluster" in used and not os.environ.get("KUBECONFIG")):
        _build(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Build them before workers collect tests, where a run has workers: what those say is not shown."""
    _build(config)


def _build(config: pytest.Config) -> None:
    if config.option.collectonly or _UNAVAILABLE in config.stash:
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")

    def say(line: str) -> None:
        if reporter is not None:
            reporter.write_line(line)

    try:
        build.programs(say=say)
    except build.ProgramsMissing as error:
        if os.environ.get("CI"):
            pytest.exit(f"CI never skips the control-plane tests: {error}", returncode=1)
        which = "control-plane tests" if not os.environ.get("KUBECONFIG") else "tests that need a control plane of ours"
        say(f"{which} are skipped: {error}")
        config.stash[_UNAVAILABLE] = str(error)
    except build.BuildFailed as error:
        pytest.exit(str(error), returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs' last lines with a failed test, and keep the logs."""
    report = yield
    # More than one lane in a run registers this hook more than once.
    if report.failed and not any(name == _SECTION for name, _ in report.sections):
        for plane in controlplane.running:
            report.sections.append((_SECTION, plane.tails()))
            plane.keep_logs()
    return report


@pytest.fixture(scope="session")
def programs(request: pytest.FixtureRequest) -> build.Programs:
    """The programs, or a skip where they cannot be had."""
    reason = request.config.stash.get(_UNAVAILABLE, "")
    if reason:
        pytest.skip(reason)
    return build.programs()


@pytest.fixture(scope="session")
def control_plane(programs: build.Programs) -> Iterator[ControlPlane]:
    """A control plane with our CRDs, shared: leave its programs running."""
    with ControlPlane(programs=programs, crds=CRDS) as plane:
        yield plane


@pytest.fixture
def own_control_plane(programs: build.Programs) -> Iterator[ControlPlane]:
    """A control plane with our CRDs for this test alone."""
    with ControlPlane(programs=programs, crds=CRDS) as plane:
        yield plane


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with our CRDs: that of ``KUBECONFIG``, else ``control_plane``."""
    given = os.environ.get("KUBECONFIG")
    if not given:
        yield request.getfixturevalue("control_plane")
        return
    found = existing(given, tmp_path_factory.mktemp("cluster"))
    found.apply_crds(CRDS)
    yield found


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of ``cluster`` for this test; its deletion is not waited for."""
    name = cluster.namespace()
    yield name
    cluster.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[FaultProxy]:
    """A fault proxy before ``control_plane``."""
    with FaultProxy(control_plane) as found:
        yield found
