"""The control-plane lane's fixtures: see ``fixtures``."""

import pytest
from e2e.controlplane import fixtures
from e2e.controlplane.fixtures import (
    cluster,
    control_plane,
    namespace,
    own_control_plane,
    programs,
    proxy,
    pytest_runtest_makereport,
    pytest_xdist_setupnodes,
)
from tests.chart import fixtures as chart
from tests.chart.fixtures import helm

__all__ = [
    "cluster",
    "control_plane",
    "helm",
    "namespace",
    "own_control_plane",
    "programs",
    "proxy",
    "pytest_collection_finish",
    "pytest_runtest_makereport",
    "pytest_xdist_setupnodes",
]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the control plane's programs, and helm for the tests of the chart."""
    fixtures.pytest_collection_finish(session)
    chart.pytest_collection_finish(session)
