"""Fixtures of the cluster lane: one cluster for all of its tests, with what is known of it kept when a test fails."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from e2e.cluster import machine, objects
from e2e.cluster.images import NEWER, ImageFailed
from e2e.cluster.lane import Built, Lane, archives, make
from e2e.cluster.packages import PackagesMissing
from e2e.cluster.service import Served
from e2e.controlplane.build import BuildFailed, ProgramsMissing
from e2e.local.asking import Texts
from e2e.local.real_model import NoEngine, engine_python, tiny_model

_SECTION = "cluster"
_BUILT = pytest.StashKey[Built]()
_NEWER = pytest.StashKey[dict[str, Path]]()
_UNAVAILABLE = pytest.StashKey[str]()
_running: list[Lane] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build programs and images before any test runs: a test's timeout would end the first build."""
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if session.config.option.collectonly or "built" not in used:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")

    def say(line: str) -> None:
        if reporter is not None:
            reporter.write_line(line)

    try:
        machine.fit()
        session.config.stash[_BUILT] = make(say=say)
        if "newer" in used:
            session.config.stash[_NEWER] = archives(NEWER, say=say)
    except (PackagesMissing, ProgramsMissing, machine.NotFit) as error:
        if os.environ.get("CI"):
            pytest.exit(f"CI never skips the cluster lane: {error}", returncode=1)
        say(f"the cluster lane is skipped: {error}")
        session.config.stash[_UNAVAILABLE] = str(error)
    except (BuildFailed, ImageFailed) as error:
        pytest.exit(str(error), returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a failed test, keep the logs and what kubectl describes, and say where."""
    report = yield
    if report.failed:
        for lane in _running:
            report.sections.append((_SECTION, f"logs and descriptions are in {lane.collect()}"))
    return report


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest) -> Built:
    """Images and programs, or a skip where this machine cannot make or run them."""
    if reason := request.config.stash.get(_UNAVAILABLE, ""):
        pytest.skip(reason)
    return request.config.stash[_BUILT]


@pytest.fixture(scope="session")
def lane(built: Built) -> Iterator[Lane]:
    """A cluster with our images. It leaves nothing behind."""
    with Lane(built) as found:
        _running.append(found)
        yield found
        _running.remove(found)
    assert machine.left() == []


@pytest.fixture(scope="session")
def newer(request: pytest.FixtureRequest, lane: Lane) -> None:
    """The cluster also has the images of the next version, to which tests upgrade."""
    for archive in request.config.stash[_NEWER].values():
        lane.node.load(archive)


@pytest.fixture
def namespace(lane: Lane) -> Iterator[str]:
    """A namespace for this test alone."""
    name = lane.plane.namespace("lane")
    yield name
    lane.plane.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def engine(lane: Lane) -> Path:
    """The interpreter with vLLM, whose image the cluster has; a skip where there is none."""
    try:
        python = Path(engine_python())
    except NoEngine as reason:
        pytest.skip(str(reason))
    lane.load_engine(python)
    return python


@pytest.fixture(scope="session")
def model(engine: Path) -> Path:
    """The folder of the tiny model."""
    return tiny_model(str(engine))


@pytest.fixture(scope="session")
def operator(lane: Lane) -> str:
    """The operator, installed by helm with the chart's defaults; what helm said."""
    return lane.install()


@pytest.fixture(scope="session")
def place(lane: Lane, operator: str, engine: Path, model: Path) -> Iterator[Served]:
    """Where the one object of all tests goes, a namespace of its own, and what is asked of it there."""
    namespace = lane.plane.namespace("serving")
    objects.bind(lane.plane.api, namespace, "models", model.parent)
    found = Served(lane, namespace, engine, Texts(model))
    yield found
    lane.plane.api.delete(f"/api/v1/namespaces/{namespace}")
    lane.plane.api.delete(f"/api/v1/persistentvolumes/{namespace}-models")


@pytest.fixture
def served(place: Served) -> Served:
    """The one object of all tests: that of the tests before, or applied here. Engines take a minute to start."""
    place.ensure()
    return place
