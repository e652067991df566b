"""What is told of a cluster and of a machine."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.doctor.world import CLASS, node, operator

from kvserving_operator import __version__
from kvserving_operator.api.schema import object_schema
from kvserving_operator.api.v1alpha1 import API_VERSION, KIND
from kvserving_operator.control.permissions import CHILDREN
from kvserving_operator.doctor import checks, gather_machine
from kvserving_operator.doctor.facts import ClusterFacts, Device, Environment, Link, MachineFacts, Permission, Unread
from kvserving_operator.doctor.findings import Finding, Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


CLUSTER = ClusterFacts(
    server="https://c",
    version="v1.35.2",
    kinds=frozenset({(API_VERSION, KIND), *((r.api_version, r.kind) for r in CHILDREN)}),
    schema=object_schema(),
    nodes=(node("a"), node("b")),
    operators=(operator(),),
    storage_classes=(CLASS,),
    permissions=(Permission("you", "get secrets", True, "verify"),),
)


def of_cluster(**changes: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in checks.of_cluster(replace(CLUSTER, **changes))}


def changed_node(**info: Any) -> dict[str, Any]:
    made = node("a")
    made["status"]["nodeInfo"].update(info)
    return made


def pressed() -> dict[str, Any]:
    made = node("a")
    made["status"]["conditions"].append({"type": "DiskPressure", "status": "True"})
    return made


def plain(name: str, **changes: Any) -> dict[str, Any]:
    return node(name, **{"rdma/hca": None, **changes})


def test_a_cluster_without_a_flaw_has_no_finding() -> None:
    assert of_cluster() == {}


@pytest.mark.parametrize(
    ("check", "changes", "severity", "what"),
    [
        ("not-looked-at", {"unread": (Unread("nodes", "nodes may not be read", "ask"),)}, INFO, "may not"),
        ("kubernetes-old", {"version": "v1.29.1"}, WARNING, "v1.29.1"),
        ("crd-missing", {"kinds": frozenset()}, ERROR, API_VERSION),
        ("crd-missing", {"kinds": frozenset({(API_VERSION, KIND)})}, ERROR, "KVServingRole"),
        ("optional-kinds", {"kinds": frozenset({(API_VERSION, KIND)})}, INFO, "PodMonitor"),
        ("operator-missing", {"operators": ()}, WARNING, "no Deployment"),
        ("operator-down", {"operators": (operator(available=0),)}, ERROR, "available"),
        ("operator-version", {"operators": (operator(version="0.0.9"),)}, WARNING, "0.0.9"),
        ("several-operators", {"operators": (operator(), operator("op2"))}, ERROR, "kvserving-system/op2"),
        ("permissions", {"permissions": (Permission("you", "get secrets", False, "verify"),)}, WARNING, "get secrets"),
        (
            "operator-permissions",
            {"permissions": (Permission("system:serviceaccount:a:b", "patch services", False, "router"),)},
            ERROR,
            "patch services",
        ),
        ("no-ready-node", {"nodes": ()}, ERROR, "none of 0"),
        ("no-devices", {"nodes": (node("a", **{"nvidia.com/gpu": None}),)}, WARNING, "no node offers"),
        ("no-rdma", {"nodes": (plain("a"), plain("b"))}, INFO, "2 nodes"),
        ("architectures", {"nodes": (changed_node(architecture="arm64"), node("b"))}, WARNING, "amd64, arm64"),
        ("kernel-old", {"nodes": (changed_node(kernelVersion="5.10.0-1"),)}, INFO, "5.10.0-1"),
        ("node-pressure", {"nodes": (pressed(),)}, WARNING, "DiskPressure"),
        ("no-default-storage-class", {"storage_classes": ()}, INFO, "none"),
    ],
)
def test_what_a_cluster_lacks_is_told(check: str, changes: dict[str, Any], severity: Severity, what: str) -> None:
    told = of_cluster(**changes)
    assert check in told, sorted(told)
    assert told[check].severity is severity
    assert what in told[check].what
    assert told[check].fix


def test_operators_of_single_namespaces_are_no_rivals() -> None:
    one, other = operator("a", __version__, 1, "--namespace=x"), operator("b", __version__, 1, "--namespace=y")
    assert of_cluster(operators=(one, other)) == {}


GPUS = (Device("H100", 80 * 2**30, "580.1"), Device("H100", 80 * 2**30, "580.1"))
MACHINE = MachineFacts(
    system="Linux",
    python="3.12.1",
    cpus=8,
    memory=64 * 2**30,
    shm_size=32 * 2**30,
    shm_free=32 * 2**30,
    stale={},
    disk_free=100 * 2**30,
    devices=GPUS,
    device_problem="",
    links=(Link("mlx5_0:1", "ACTIVE", "InfiniBand", "400 Gb/sec"),),
    peer_memory=True,
    memlock=-1,
    open_files=65536,
    engine=Environment("/e", "", "0.33.0", "gpu", "1.0", None, None, True),
    nearby=None,
    router=Environment("/r", "", None, None, None, "1.13.0"),
    store="/usr/bin/valkey-server",
    loopback=True,
    variables={},
    reach={"hub:443": ""},
)


def of_machine(**changes: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in checks.of_machine(replace(MACHINE, **changes))}


def engine(**changes: Any) -> Environment:
    return replace(MACHINE.engine, **changes)


def test_a_machine_without_a_flaw_has_no_finding() -> None:
    assert of_machine() == {}


@pytest.mark.parametrize(
    ("check", "changes", "severity", "what"),
    [
        ("not-linux", {"system": "Darwin"}, ERROR, "Darwin"),
        ("no-engine", {"engine": engine(vllm=None)}, ERROR, "no vLLM"),
        ("no-engine", {"engine": engine(problem="/e does not run as Python")}, ERROR, "does not run"),
        ("no-nixl", {"engine": engine(nixl=None)}, ERROR, "nixl"),
        ("no-connector", {"engine": engine(connector=False)}, ERROR, "kvserving_connector"),
        ("engine-too-old", {"engine": engine(vllm="0.20.0")}, ERROR, "0.24.0"),
        ("engine-reduced", {"engine": engine(vllm="0.26.0")}, WARNING, "no tiers"),
        ("engine-untested", {"engine": engine(vllm="0.31.0")}, INFO, "0.31.0"),
        ("cpu-build-on-gpus", {"engine": engine(device="cpu")}, WARNING, "2 GPUs"),
        ("gpu-build-without-gpus", {"devices": ()}, ERROR, "none is seen"),
        ("no-router", {"router": replace(MACHINE.router, smg=None)}, ERROR, "neither"),
        ("memory-small", {"memory": 4 * 2**30, "devices": ()}, WARNING, "4Gi"),
        ("shm-small", {"shm_size": 64 * 2**20}, ERROR, "0.1Gi"),
        ("shm-leftovers", {"stale": {"/dev/shm/vllm_offload_a": 2**30}}, WARNING, "1 files"),
        ("disk-small", {"disk_free": 2**20}, WARNING, "free"),
        ("nvidia-smi", {"devices": (), "device_problem": "nvidia-smi failed: x"}, ERROR, "failed"),
        ("one-gpu", {"devices": GPUS[:1]}, WARNING, "H100"),
        ("gpus-differ", {"devices": (GPUS[0], Device("L4", 1, "580.1"))}, WARNING, "H100, L4"),
        ("gpus-hidden", {"variables": {"CUDA_VISIBLE_DEVICES": ""}}, WARNING, "names no GPU"),
        ("rdma-port-down", {"links": (Link("mlx5_0:1", "DOWN", "", ""),)}, WARNING, "DOWN"),
        ("memlock", {"memlock": 8 * 2**20}, ERROR, "may lock"),
        ("no-peer-memory", {"peer_memory": False}, INFO, "not loaded"),
        (
            "expandable-segments",
            {"variables": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
            ERROR,
            "inherit",
        ),
        ("loopback", {"loopback": False}, ERROR, "cannot be bound"),
        ("open-files", {"open_files": 256}, WARNING, "256"),
        ("no-store", {"store": None}, INFO, "valkey-server"),
        ("unreachable", {"reach": {"hub:443": "no connection"}}, WARNING, "no connection"),
    ],
)
def test_what_a_machine_lacks_is_told(check: str, changes: dict[str, Any], severity: Severity, what: str) -> None:
    told = of_machine(**changes)
    assert check in told, sorted(told)
    assert told[check].severity is severity
    assert what in told[check].what
    assert told[check].fix


def test_an_environment_that_lies_beside_the_command_is_the_way_out() -> None:
    told = of_machine(engine=engine(vllm=None), nearby="/here/.venv-engine/bin/python")
    assert "/here/.venv-engine/bin/python" in told["no-engine"].fix


def test_rdma_ports_are_read_from_the_system(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE\n"), ("link_layer", "Ethernet\n"), ("rate", "200 Gb/sec (4X HDR)\n")):
        (port / name).write_text(text)
    assert gather_machine.links(tmp_path) == (Link("mlx5_0:1", "ACTIVE", "Ethernet", "200 Gb/sec (4X HDR)"),)
    assert gather_machine.links(tmp_path / "absent") == ()


def test_the_gpus_are_those_that_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gather_machine.gpus() == ((), "")
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559, 580.1'\n")
    tool.chmod(0o755)
    assert gather_machine.gpus() == ((Device("NVIDIA H100", 81559 * 2**20, "580.1"),), "")
    tool.write_text("#!/bin/sh\necho 'Driver/library version mismatch'\nexit 18\n")
    assert gather_machine.gpus() == ((), "nvidia-smi failed: Driver/library version mismatch")


def test_the_hub_is_reached_by_a_connection_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        there = {"HF_ENDPOINT": f"http://127.0.0.1:{port}"}
        assert asyncio.run(gather_machine.reach(there)) == {f"127.0.0.1:{port}": ""}
        assert asyncio.run(gather_machine.reach({**there, "HF_HUB_OFFLINE": "1"})) == {}
        assert asyncio.run(gather_machine.reach({**there, "https_proxy": "http://p"})) == {}
    (problem,) = asyncio.run(gather_machine.reach(there)).values()
    assert problem.startswith("no connection")


def test_an_interpreter_that_is_none_is_a_problem_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSERVING_ENGINE_PYTHON", "/no/such/python")
    assert "/no/such/python is not a program" in gather_machine.environment(None, "KVSERVING_ENGINE_PYTHON").problem
