"""Fixtures of the operator lane: a control plane, a fault proxy before it, and operators as processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.controlplane.fixtures import (
    control_plane,
    own_control_plane,
    programs,
    pytest_collection_finish,
    pytest_runtest_makereport,
    pytest_xdist_setupnodes,
)
from e2e.operator.running import Operator, operator_user

__all__ = [
    "control_plane",
    "own_control_plane",
    "programs",
    "pytest_collection_finish",
    "pytest_runtest_makereport",
    "pytest_xdist_setupnodes",
]

Start = Callable[..., Operator]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let workers begin with the tests that may take the longest: one that is left for last has no other beside it."""
    if hasattr(config, "workerinput"):
        items.sort(key=_most_seconds, reverse=True)


def _most_seconds(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None else 0.0


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The control plane of a test: the shared one, unless its file says otherwise."""
    return control_plane


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[FaultProxy]:
    """A fault proxy, through which the test's operators talk."""
    with FaultProxy(plane) as found:
        yield found


@pytest.fixture
def namespace(plane: ControlPlane) -> Iterator[str]:
    """A namespace for this test alone."""
    name = plane.namespace("kvs")
    yield name
    plane.api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def kubelet(plane: ControlPlane, namespace: str) -> Iterator[FakeKubelet]:
    """A stand-in kubelet for the test's namespace: its pods become ready at once."""
    with FakeKubelet(plane, namespace=namespace, capacity={"nvidia.com/gpu": 64}) as found:
        yield found


@pytest.fixture
def verdict(tmp_path: Path) -> Path:
    """The file that says how probes end."""
    file = tmp_path / "verdict"
    file.write_text("ok")
    return file


@pytest.fixture
def start(
    plane: ControlPlane,
    proxy: FaultProxy,
    namespace: str,
    tmp_path: Path,
    verdict: Path,
) -> Iterator[Start]:
    """Start an operator for the test's namespace, with further arguments as given; it is ended with the test."""
    user = operator_user(plane, namespace)
    kubeconfig = plane.kubeconfig(user, server=proxy.url)
    running: list[Operator] = []

    def begin(
        *arguments: str,
        wait: bool = True,
        stub: bool = True,
        everywhere: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Operator:
        operator = Operator(
            kubeconfig=kubeconfig,
            log=tmp_path / f"operator-{len(running)}.log",
            own_namespace=namespace,
            arguments=(*(() if everywhere else (f"--namespace={namespace}",)), *arguments),
            env={"KVSERVING_TEST_PROBE": str(verdict), "KUBECONFIG": "", **(env or {})},
            stub=stub,
        )
        running.append(operator)
        return operator.start(wait=wait)

    yield begin
    for operator in running:
        operator.end()
        # Shown with a failed test alone, as all that tests write.
        sys.stderr.write(f"--- {operator.log.name}\n{operator.tail(120)}\n")
