"""What is told of a machine: a laptop and a GPU host."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from kvserving_operator import __version__
from kvserving_operator.doctor import checks, report
from kvserving_operator.doctor.facts_machine import (
    Device,
    Driver,
    Environment,
    Limits,
    Link,
    MachineFacts,
    Stack,
    Topology,
)
from kvserving_operator.doctor.findings import Finding, Severity

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

GPUS = (Device("H100", 80 * 2**30, "580.1", 79 * 2**30), Device("H100", 80 * 2**30, "580.1", 79 * 2**30))
UCX = frozenset({"cma", "cuda", "ib"})
STACK = Stack("13.0", {12: UCX, 13: UCX}, None, __version__)
MACHINE = MachineFacts(
    system="Linux",
    python="3.12.1",
    cpus=8,
    memory=64 * 2**30,
    shm_size=32 * 2**30,
    shm_free=32 * 2**30,
    stale={},
    disk_free=100 * 2**30,
    disk_needed=160 * 2**20,
    devices=GPUS,
    device_problem="",
    links=(Link("mlx5_0:1", "ACTIVE", "InfiniBand", "400 Gb/sec"),),
    engine=Environment("/e", "", "0.33.0", "gpu", "1.5.1", {}, True, STACK),
    nearby=None,
    router=Environment("/r", "", None, None, None, {"smg": "1.13.0", "vllm-router": "0.1.17"}),
    store="/usr/bin/valkey-server",
    loopback=True,
    variables={},
    reach={"hub:443": ""},
    driver=Driver((13, 0), cards=2, loaded=True, open=False, switches=4, manager=True, peer_memory=True),
    topology=Topology(
        {("GPU0", "GPU1"): "OK", ("GPU1", "GPU0"): "OK"},
        {("GPU0", "GPU1"): "NV18", ("GPU0", "NIC0"): "PIX", ("GPU1", "NIC0"): "SYS", ("GPU1", "NIC1"): "PIX"},
    ),
    instructions=frozenset({"avx2"}),
    kernel=(6, 8),
)


def of_machine(**changes: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in checks.of_machine(replace(MACHINE, **changes))}


def engine(**changes: Any) -> Environment:
    return replace(MACHINE.engine, **changes)


def on(**changes: Any) -> Environment:
    """The engines' Python on another stack."""
    return engine(stack=replace(STACK, **changes))


def driver(**changes: Any) -> Driver:
    return replace(MACHINE.driver, **changes)


def ways(word: str) -> Topology:
    """GPUs that reach each other and the network by ``word``."""
    return replace(MACHINE.topology, paths=dict.fromkeys(MACHINE.topology.paths, word))


def test_a_machine_without_a_flaw_has_no_finding() -> None:
    assert of_machine() == {}


@pytest.mark.parametrize(
    ("check", "changes", "severity", "what"),
    [
        ("not-linux", {"system": "Darwin"}, ERROR, "Darwin"),
        ("no-engine", {"engine": engine(vllm=None)}, ERROR, "no vLLM"),
        ("state-damaged", {"damaged": {"qwen": "holds no state"}}, WARNING, "its state.json holds no state"),
        ("no-engine", {"engine": engine(problem="/e does not run as Python")}, ERROR, "does not run"),
        ("no-nixl", {"engine": engine(nixl=None)}, ERROR, "nixl"),
        ("no-connector", {"engine": engine(connector=False)}, ERROR, "kvserving_connector"),
        ("engine-too-old", {"engine": engine(vllm="0.20.0")}, ERROR, "0.24.0"),
        ("engine-reduced", {"engine": engine(vllm="0.26.0")}, WARNING, "no tiers"),
        ("engine-untested", {"engine": engine(vllm="0.31.0")}, INFO, "0.31.0"),
        ("cpu-build-on-gpus", {"engine": engine(device="cpu")}, WARNING, "2 GPUs"),
        ("gpu-build-without-gpus", {"devices": ()}, ERROR, "none is seen"),
        ("connector-version", {"engine": on(connector="0.0.9")}, WARNING, "0.0.9"),
        ("nixl-of-other-cuda", {"engine": on(nixl={12: UCX})}, ERROR, "CUDA 13.0, and of NIXL it has nixl-cu12"),
        ("nixl-of-other-cuda", {"engine": engine(device="cpu", stack=replace(STACK, nixl={12: UCX}))}, ERROR, "cu12"),
        ("ucx-lacks-cuda", {"engine": on(nixl={12: UCX, 13: UCX - {"cuda"}})}, ERROR, "cma, ib"),
        ("ucx-lacks-rdma", {"engine": on(nixl={13: UCX - {"ib"}})}, WARNING, "cma, cuda"),
        ("kvcached-unpatched", {"engine": on(kvcached="0.1.6")}, WARNING, "vLLM 0.33.0"),
        (
            "kvcached-untested",
            {"engine": engine(vllm="0.30.0", stack=replace(STACK, kvcached="0.1.5"))},
            INFO,
            "0.1.5; tested: 0.1.6",
        ),
        ("no-avx2", {"engine": engine(device="cpu"), "instructions": frozenset({"sse4_2"})}, ERROR, "AVX2"),
        (
            "router-untested",
            {"router": replace(MACHINE.router, routers={"smg": "1.12.0"})},
            INFO,
            "1.12.0; tested: 1.13.0",
        ),
        (
            "router-untested",
            {"router": replace(MACHINE.router, routers={"vllm-router": "0.2.0"})},
            INFO,
            "vllm-router is 0.2.0",
        ),
        ("no-router", {"router": replace(MACHINE.router, routers={})}, ERROR, "neither"),
        ("memory-small", {"memory": 4 * 2**30, "devices": ()}, WARNING, "4Gi"),
        ("shm-small", {"shm_size": 64 * 2**20}, ERROR, "it holds 64Mi;"),
        ("shm-full", {"shm_free": 2**30}, ERROR, "1Gi of 32Gi are free"),
        ("few-cores", {"cpus": 1, "devices": ()}, WARNING, "1 can be used"),
        ("few-tasks", {"limits": Limits(tasks=256)}, WARNING, "256 processes"),
        ("overcommit", {"limits": Limits(overcommit=2)}, WARNING, "it is 2"),
        ("state-folder", {"state_problem": "/state may not be written to"}, ERROR, "/state"),
        ("service-lost", {"lost": ("qwen",)}, WARNING, "supervisor has gone"),
        ("port-busy", {"busy": ("127.0.0.1:8000",)}, WARNING, "listens there"),
        ("shm-leftovers", {"stale": {"/dev/shm/vllm_offload_a": 2**30}}, WARNING, "1 files"),
        ("disk-small", {"disk_free": 2**30}, WARNING, "1Gi are free"),
        ("disk-small", {"disk_free": 9 * 2**20}, ERROR, "9Mi are free; the logs of one prefill, one decode and"),
        ("disk-small", {"disk_free": 0}, ERROR, "0Mi are free; "),
        ("nvidia-smi", {"devices": (), "device_problem": "nvidia-smi failed: x"}, ERROR, "failed"),
        ("one-gpu", {"devices": GPUS[:1]}, WARNING, "H100"),
        ("gpus-differ", {"devices": (GPUS[0], Device("L4", 1, "580.1"))}, WARNING, "H100, L4"),
        ("gpus-hidden", {"variables": {"CUDA_VISIBLE_DEVICES": ""}}, WARNING, "names no GPU"),
        ("no-driver", {"devices": (), "driver": Driver(cards=1)}, WARNING, "1 of NVIDIA's GPUs"),
        ("no-nvidia-smi", {"devices": ()}, WARNING, "nvidia-smi is not in PATH"),
        ("driver-old", {"driver": driver(cuda=(12, 8))}, ERROR, "driver 580.1 runs CUDA 12.8, and the engines' torch"),
        ("no-fabric-manager", {"driver": driver(manager=False)}, WARNING, "4 NVSwitches"),
        ("mig", {"devices": (GPUS[0], replace(GPUS[1], mig=True))}, WARNING, "instances"),
        ("gpu-memory-used", {"devices": (GPUS[0], replace(GPUS[1], free=60 * 2**30))}, WARNING, "60Gi of 80Gi"),
        (
            "no-peer-access",
            {"topology": replace(MACHINE.topology, peers={("GPU0", "GPU1"): "CNS", ("GPU1", "GPU0"): "CNS"})},
            WARNING,
            "GPU0-GPU1 CNS (",
        ),
        ("no-nvlink", {"topology": ways("PHB")}, INFO, "GPU0-GPU1 PHB ("),
        ("nic-far", {"topology": ways("SYS")}, INFO, "NIC0, NIC1"),
        ("no-roce-address", {"links": (Link("mlx5_0:1", "ACTIVE", "Ethernet", "", False),)}, WARNING, "RoCE v2"),
        ("no-verbs", {"verbs": False}, WARNING, "uverbs"),
        ("rdma-port-down", {"links": (Link("mlx5_0:1", "DOWN", "", ""),)}, WARNING, "DOWN"),
        ("memlock", {"limits": Limits(memlock=8 * 2**20)}, ERROR, "may lock"),
        ("no-peer-memory", {"driver": driver(peer_memory=False)}, INFO, "not loaded"),
        (
            "expandable-segments",
            {"variables": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
            ERROR,
            "inherit",
        ),
        ("loopback", {"loopback": False}, ERROR, "cannot be bound"),
        ("open-files", {"limits": Limits(open_files=256)}, WARNING, "256"),
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


@pytest.mark.parametrize(
    ("changes", "unwanted"),
    [
        ({"driver": driver(peer_memory=False, open=True)}, "no-peer-memory"),
        ({"devices": (GPUS[0], replace(GPUS[1], free=2**30)), "running": ("qwen",)}, "gpu-memory-used"),
        ({"engine": on(cuda="12.8")}, "driver-old"),
        ({"engine": engine(device="cpu"), "instructions": None}, "no-avx2"),
        ({"engine": on(cuda=None, nixl={12: UCX})}, "nixl-of-other-cuda"),
        ({"engine": engine(device="cpu", stack=replace(STACK, nixl={13: frozenset({"cma"})}))}, "ucx-lacks-cuda"),
        ({"links": (Link("mlx5_0:1", "ACTIVE", "Ethernet", "", True),)}, "no-roce-address"),
        ({"links": (Link("mlx5_0:1", "DOWN", "", ""),), "verbs": False}, "no-verbs"),
        ({"limits": Limits(tasks=None)}, "few-tasks"),
        ({"engine": engine(vllm="0.30.0", stack=replace(STACK, kvcached="0.1.6"))}, "kvcached-untested"),
        ({"driver": driver(open=True, peer_memory=False), "kernel": (6, 8)}, "no-peer-memory"),
    ],
)
def test_what_only_looks_like_a_lack_is_let_be(changes: dict[str, Any], unwanted: str) -> None:
    assert unwanted not in of_machine(**changes)


def test_the_open_module_needs_a_kernel_that_shares_by_dma_buf() -> None:
    assert "no-peer-memory" in of_machine(driver=driver(peer_memory=False, open=True), kernel=(5, 4))


def test_the_way_out_of_a_busy_port_is_that_of_who_wanted_it() -> None:
    assert "--listen 127.0.0.1:8001" in of_machine(busy=("127.0.0.1:8000",))["port-busy"].fix
    assert "--port=18000" in of_machine(busy=("127.64.0.1:8000",))["port-busy"].fix


def test_what_a_cpu_laptop_has_is_enough() -> None:
    laptop = {"devices": (), "links": (), "driver": Driver(), "topology": Topology(),
              "engine": engine(vllm="0.32.0", device="cpu")}  # fmt: skip
    assert of_machine(**laptop) == {}


@pytest.mark.parametrize("count", [1, 123])
def test_left_shared_memory_is_removed_by_the_command_that_is_told(tmp_path: Path, count: int) -> None:
    names = [f"psm_{number:08x}" for number in range(count - 1)] + ["vllm_offload_$(touch bad) 'x'"]
    for name in ("psm_in_use", *names):
        (tmp_path / name).touch()
    stale = {str(tmp_path / name): 4096 for name in names}
    (finding,) = (f for f in checks.of_machine(replace(MACHINE, stale=stale)) if f.check == "shm-leftovers")
    command = finding.fix.partition("`")[2].removesuffix("`")
    subprocess.run(["bash", "-c", command], check=True, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["psm_in_use"]


def test_the_names_of_a_command_stay_in_one_line() -> None:
    stale = {f"/dev/shm/psm_{number:08x}": 4096 for number in range(6)}
    lines = list(report.told(checks.of_machine(replace(MACHINE, stale=stale))))
    assert f"/dev/shm/{{{','.join(f'psm_{number:08x}' for number in range(6))}}}`" in [line.strip() for line in lines]


def test_of_many_names_a_few_are_shown_and_the_command_stands_whole_in_the_document() -> None:
    stale = {f"/dev/shm/psm_{number:08x}": 4096 for number in range(155)}
    found = checks.of_machine(replace(MACHINE, stale=stale))
    text = " ".join(" ".join(report.told(found)).split())
    assert "(psm_00000000, psm_00000001, psm_00000002 and 152 more): `kvserving doctor -o json` has the whole" in text
    assert text.count("psm_") == 3
    (entry,) = report.document({}, found)["findings"]
    assert all(PurePosixPath(path).name in entry["fix"] for path in stale)


def test_the_cuda_of_an_environment_is_told_as_that_of_its_torch() -> None:
    built = replace(MACHINE, engine=engine(vllm="0.32.0", device="cpu"))
    (line,) = (line for line in report.machine_lines(built) if line.startswith("  engines"))
    assert "vllm 0.32.0 (cpu), torch for CUDA 13.0 (no GPU is used), " in line
    on_gpus = replace(MACHINE, engine=engine(vllm="0.32.0", device="cuda"))
    (line,) = (line for line in report.machine_lines(on_gpus) if line.startswith("  engines"))
    assert "torch for CUDA 13.0, " in line


def test_what_programs_print_is_masked_in_the_head_too() -> None:
    said = "nvidia-smi failed: hf_abcdefghijklmnop password=hunter2"
    facts = replace(MACHINE, devices=(), device_problem=said, store="/s\x1b[31m")
    head = "\n".join(report.machine_lines(facts))
    assert "  GPUs         nvidia-smi failed: *** password=***\n" in head
    assert "\x1b" not in head
    found = report.document(report.machine_subject(replace(facts, system="password=hunter2")), ())
    assert found["machine"]["system"] == "password=***"
    assert found["machine"]["gpus"] is None, "a driver that does not answer does not say that there are none"


def test_a_gpu_without_memory_of_its_own_has_an_unknown_one() -> None:
    gpu = Device("GB10", None, None, None)
    head = "\n".join(report.machine_lines(replace(MACHINE, devices=(gpu,))))
    assert "  GPUs         GB10 (memory unknown, driver unknown)\n" in head
    assert "gpu-memory-used" not in of_machine(devices=(gpu, replace(gpu, free=2**30)))
    [told] = report.machine_subject(replace(MACHINE, devices=(gpu,)))["machine"]["gpus"]
    assert told == {"name": "GB10", "memory": None, "free": None, "driver": None, "mig": False}
    assert (
        "no other GPU" in of_machine(devices=(gpu,), device_problem="nvidia-smi lists what is no GPU")["nvidia-smi"].why
    )
