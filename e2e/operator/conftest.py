"""Fixtures of the operator lane: a control plane, a fault proxy before it, and operators as processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from e2e.controlplane import build
from e2e.controlplane.controlplane import ControlPlane
from e2e.controlplane.fake_kubelet import FakeKubelet
from e2e.controlplane.fault_proxy import FaultProxy
from e2e.operator.running import ROOT, Operator, operator_user

CRDS = sorted((ROOT / "crds").glob("*.yaml"))
Start = Callable[..., Operator]
FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane with our CRDs, shared by all tests."""
    try:
        programs = build.programs()
    except build.ProgramsMissing as error:
        pytest.skip(str(error))
    with ControlPlane(programs=programs, crds=CRDS) as found:
        yield found


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
    request: pytest.FixtureRequest,
) -> Iterator[Start]:
    """Start an operator for the test's namespace, with further arguments as given; it is ended with the test."""
    user = operator_user(plane, namespace)
    kubeconfig = plane.kubeconfig(user, server=proxy.url)
    running: list[Operator] = []

    def begin(*arguments: str, wait: bool = True, stub: bool = True, everywhere: bool = False) -> Operator:
        operator = Operator(
            kubeconfig=kubeconfig,
            log=tmp_path / f"operator-{len(running)}.log",
            own_namespace=namespace,
            arguments=(*(() if everywhere else (f"--namespace={namespace}",)), *arguments),
            program=(str(ROOT / "e2e/operator/stub_probe.py"),) if stub else Operator.program,
            env={"KVSERVING_TEST_PROBE": str(verdict), "KUBECONFIG": ""},
        )
        running.append(operator)
        return operator.start(wait=wait)

    yield begin
    for operator in running:
        operator.end()
        if request.node.stash.get(FAILED, False):
            sys.stderr.write(f"--- {operator.log.name}\n{operator.tail(120)}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report
