"""Fixtures of the harness's own tests: a namespace of our control plane, and a client that comes in by the proxy."""

from __future__ import annotations

import pytest
from e2e.controlplane.api import Api
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fault_proxy import FaultProxy


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    return control_plane.namespace()


@pytest.fixture
def api(control_plane: ControlPlane, proxy: FaultProxy) -> Api:
    """A client that comes in through the proxy; ``control_plane.api`` is the view past it."""
    return control_plane.api_as(control_plane.admin, server=proxy.url)


@pytest.fixture
def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"
