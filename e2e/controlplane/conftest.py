"""The control-plane lane's fixtures: see ``fixtures``."""

from e2e.controlplane.fixtures import (
    cluster,
    control_plane,
    namespace,
    own_control_plane,
    programs,
    proxy,
    pytest_collection_finish,
    pytest_runtest_makereport,
)

__all__ = [
    "cluster",
    "control_plane",
    "namespace",
    "own_control_plane",
    "programs",
    "proxy",
    "pytest_collection_finish",
    "pytest_runtest_makereport",
]
