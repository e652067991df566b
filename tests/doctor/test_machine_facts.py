"""What is read of a machine: from trees of /proc and /sys, from stand-ins of its programs, and as it is."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvserving_operator import cli
from kvserving_operator.doctor import gather_devices, gather_environment, gather_machine
from kvserving_operator.doctor.facts_machine import Device, Driver, Link, Topology
from kvserving_operator.local import hub, processor, procfs, waiting
from kvserving_operator.local.errors import EnvironmentFault
from kvserving_operator.local.state import PodState, ServiceDir, State

PEERS = """
 \tGPU0\tGPU1\t
 GPU0\tX\tOK\t
 GPU1\tCNS\tX\t

Legend:

  X    = Self
  OK   = Status Ok
"""
PATHS = """
\t\033[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\033[0m
GPU0\t X \tNV18\tPIX\t0-15\t0
GPU1\tNV18\t X \tSYS\t16-31\t1
NIC0\tPIX\tSYS\t X \t\t

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
"""
SMI = f"""#!/bin/sh
case "$*" in
*--query-gpu=*) echo 'NVIDIA H100, 81559, 580.1, 80990, Disabled'; echo 'NVIDIA H100, 81559, 580.1, [N/A], Enabled';;
*-p2p*) echo '{PEERS}';;
*) echo '{PATHS}';;
esac
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    """Files below ``root``, by path."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in of nvidia-smi, the only program in PATH."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    return tool


def test_the_gpus_are_those_that_nvidia_smi_lists(smi: Path) -> None:
    first = Device("NVIDIA H100", 81559 * 2**20, "580.1", 80990 * 2**20, False)
    assert gather_devices.gpus() == ((first, Device("NVIDIA H100", 81559 * 2**20, "580.1", None, True)), "")
    smi.write_text("#!/bin/sh\necho 'Driver/library version mismatch'\nexit 18\n")
    assert gather_devices.gpus() == ((), "nvidia-smi failed: Driver/library version mismatch")
    assert gather_devices.topology() == Topology()
    smi.write_text("garbage")
    assert gather_devices.gpus() == ((), f"nvidia-smi cannot be run: Exec format error ({smi})")
    smi.unlink()
    assert gather_devices.gpus() == ((), "")


def test_what_nvidia_smi_does_not_tell_of_a_gpu_is_unknown(smi: Path) -> None:
    smi.write_text("#!/bin/sh\necho 'NVIDIA GB10, [N/A], [Not Supported], N/A, [N/A]'\n")
    assert gather_devices.gpus() == ((Device("NVIDIA GB10", None, None, None, False),), "")


@pytest.mark.parametrize(
    "line", ["a,b,c,d,e", ",,,,", "GPU0 GPU1", "H100, 81559, 580.1, 80990", "H100, 81559 MiB, 580.1, 80990, Disabled",
             ", 81559, 580.1, 80990, Disabled", "H100, , 580.1, 80990, Disabled", "H100, 81559, 580.1, 80990, perhaps"]
)  # fmt: skip
def test_lines_that_are_no_gpu_are_told_and_make_none(smi: Path, line: str) -> None:
    smi.write_text(f"#!/bin/sh\necho 'H100, 81559, 580.1, 80990, Disabled'\necho '{line}'\n")
    devices, problem = gather_devices.gpus()
    assert devices == (Device("H100", 81559 * 2**20, "580.1", 80990 * 2**20, False),)
    assert problem == f"nvidia-smi lists what is no GPU: {line!r}"
    smi.write_text(f"#!/bin/sh\necho '{line}'\necho\necho '{line}'\necho '{line}'\n")
    assert gather_devices.gpus() == ((), f"nvidia-smi lists what is no GPU: {line!r} and 2 more such lines")


def test_bytes_of_nvidia_smi_that_are_no_text_are_replaced(smi: Path) -> None:
    smi.write_text("#!/bin/sh\nprintf '\\377, 81559, 580.1, 80990, Disabled\\n'\n")
    assert gather_devices.gpus()[0][0].name == "\ufffd"


def test_both_questions_about_the_topology_are_asked_at_once(smi: Path, tmp_path: Path) -> None:
    sleep, seen = shutil.which("sleep", path="/bin:/usr/bin"), tmp_path / "seen"
    seen.mkdir()
    both = f"[ -e {seen}/-p2p ] && [ -e {seen}/-m ]"
    smi.write_text(f"#!/bin/sh\n: > {seen}/$2\nuntil {both}; do {sleep} 0.05; done\necho '{PATHS}'\n")
    found = gather_devices.topology()
    assert found.peers == found.paths != {}


def test_an_nvidia_smi_that_hangs_is_ended_with_its_children_and_told_in_words(
    smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = shutil.which("sleep", path="/bin:/usr/bin")
    smi.write_text(f"#!/bin/sh\n{sleep} 600 &\necho $! >> {tmp_path / 'children'}\nwait\n")
    monkeypatch.setattr(gather_devices, "_SECONDS", 2.0)
    assert gather_devices.gpus() == ((), "nvidia-smi does not answer within 2 s")
    assert gather_devices.topology() == Topology()
    children = [int(line) for line in (tmp_path / "children").read_text().split()]
    assert len(children) == 3
    assert waiting.all_gone(children, 30)


def test_how_gpus_reach_each_other_and_the_network_is_read_from_the_matrices(smi: Path) -> None:
    found = gather_devices.topology()
    assert found.peers == {("GPU0", "GPU1"): "OK", ("GPU1", "GPU0"): "CNS"}
    assert found.paths == {
        ("GPU0", "GPU1"): "NV18", ("GPU0", "NIC0"): "PIX", ("GPU1", "GPU0"): "NV18", ("GPU1", "NIC0"): "SYS",
        ("NIC0", "GPU0"): "PIX", ("NIC0", "GPU1"): "SYS",
    }  # fmt: skip


def test_the_driver_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    assert gather_devices.driver(tmp_path) == Driver()
    tree(tmp_path, {
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
        "sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n",
        "sys/bus/pci/devices/0000:02:00.0/vendor": "0x8086\n", "sys/bus/pci/devices/0000:02:00.0/class": "0x030000\n",
    })  # fmt: skip
    assert gather_devices.driver(tmp_path) == Driver(cards=1)
    tree(tmp_path, {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1\nGCC\n",
        "sys/module/nvidia_peermem/refcnt": "0", "dev/nvidia-nvswitch0": "", "dev/nvidia-nvswitchctl": "",
        "proc/77/comm": "bash\n",
    })  # fmt: skip
    found = gather_devices.driver(tmp_path)
    assert (found.loaded, found.open, found.peer_memory, found.switches, found.manager) == (True, True, True, 1, False)
    (tmp_path / "proc/77/comm").write_bytes(b"\xff\n")
    tree(tmp_path, {"proc/78/comm": "nv-fabricmanage\n"})
    assert gather_devices.driver(tmp_path).manager


@pytest.mark.parametrize(("number", "found"), [(13000, (13, 0)), (12080, (12, 8))])
def test_the_newest_cuda_of_the_driver_is_what_its_library_says(
    tmp_path: Path, number: int, found: tuple[int, int]
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler makes a stand-in of the library here")
    source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so"
    source.write_text(f"int cuDriverGetVersion(int *version) {{ *version = {number}; return 0; }}\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    assert gather_devices.cuda(str(library)) == found
    source.write_text("int cuDriverGetVersion(int *version) { *version = 1; return 999; }\n")
    refusing = tmp_path / "librefusing.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", refusing, source], check=True, timeout=60)
    assert gather_devices.cuda(str(refusing)) is None


def test_without_the_drivers_library_no_cuda_is_told() -> None:
    assert gather_devices.cuda("libcuda-that-nobody-has.so.1") is None


def test_rdma_ports_are_read_from_the_system(tmp_path: Path) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"
    tree(tmp_path, {f"{port}/state": "4: ACTIVE\n", f"{port}/link_layer": "Ethernet\n",
                    f"{port}/rate": "200 Gb/sec (4X HDR)\n", f"{port}/gid_attrs/types/0": "IB/RoCE v1\n",
                    f"{port}/gids/0": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
                    f"{port}/gid_attrs/types/1": "RoCE v2\n",
                    f"{port}/gids/1": "fe80:0000:0000:0000:0000:0000:0000:0001\n"})  # fmt: skip
    [link] = gather_devices.links(tmp_path)
    assert link == Link("mlx5_0:1", "ACTIVE", "Ethernet", "200 Gb/sec (4X HDR)", False)
    tree(
        tmp_path,
        {f"{port}/gid_attrs/types/2": "RoCE v2\n", f"{port}/gids/2": "0000:0000:0000:0000:0000:ffff:0a00:0001\n"},
    )
    assert gather_devices.links(tmp_path)[0].routable is True
    tree(tmp_path, {f"{port}/link_layer": "InfiniBand\n"})
    assert gather_devices.links(tmp_path)[0].routable is None
    assert gather_devices.links(tmp_path / "absent") == ()


def test_rdma_devices_are_for_programs_where_one_may_be_opened(tmp_path: Path) -> None:
    assert not gather_devices.verbs(tmp_path)
    tree(tmp_path, {"dev/infiniband/uverbs0": ""})
    assert gather_devices.verbs(tmp_path)


def test_the_bounds_of_a_container_count_beside_those_of_the_shell(tmp_path: Path) -> None:
    unbound = gather_machine.limits(tmp_path).tasks
    tree(tmp_path, {"sys/fs/cgroup/pids.max": "200\n", "proc/sys/vm/overcommit_memory": "2\n"})
    found = gather_machine.limits(tmp_path)
    assert (found.tasks, found.overcommit) == (200, 2)
    tree(tmp_path, {"sys/fs/cgroup/pids.max": "max\n", "sys/fs/cgroup/pids/pids.max": "max\n"})
    assert gather_machine.limits(tmp_path).tasks == unbound


def test_instructions_are_those_of_the_processor(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse2 avx2\nbugs\t: spectre\n"})
    assert processor.instructions(tmp_path) == frozenset({"fpu", "sse2", "avx2"})
    tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd\n"})
    assert processor.instructions(tmp_path) is None


def test_a_folder_for_state_is_one_that_could_be_made_and_nothing_is_made(tmp_path: Path) -> None:
    assert gather_machine.state_fault(tmp_path / "a" / "b") == ""
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert gather_machine.state_fault(tmp_path / "file" / "b") == f"{tmp_path / 'file'} is no folder"


def test_an_address_that_somebody_else_has_is_busy_and_one_of_a_service_is_not() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.64.0.1", 8000))
        except OSError:
            pytest.skip("somebody has 127.64.0.1:8000 here")
        server.listen(1)
        assert "127.64.0.1:8000" in gather_machine.busy([])
        pod = PodState("a-decode-0", "decode", "127.64.0.1", 8000)
        state = State("a", "r", "Ready", {}, sys.executable, "tiny", (pod,), {})
        assert "127.64.0.1:8000" not in gather_machine.busy([state])


def test_a_service_whose_supervisor_has_gone_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    gone = {"pid": os.getpid(), "start_time": (procfs.start_time(os.getpid()) or 0) + 1}
    directory = ServiceDir("qwen")
    directory.create()
    directory.write(State("qwen", "r", "Ready", {}, sys.executable, "tiny", (), gone))
    assert cli.run(["doctor"]) in (0, 1)
    assert "WARNING  qwen  (service-lost)" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b'{"name": "qwen"}'])
def test_a_state_that_is_damaged_is_told_and_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file = tmp_path / "qwen" / "state.json"
    file.parent.mkdir()
    file.write_bytes(content)
    assert cli.run(["doctor"]) in (0, 1)
    assert "WARNING  qwen  (state-damaged)\n    its state.json holds no state\n" in capsys.readouterr().out
    assert cli.run(["doctor", "qwen"]) == 1
    assert "qwen: its state.json holds no state" in capsys.readouterr().err
    assert list(file.parent.iterdir()) == [file]
    assert file.read_bytes() == content


def test_a_state_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path))
    file = tmp_path / "qwen" / "state.json"
    file.parent.mkdir()
    file.write_text("{}")

    def fails(path: Path, **_: object) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "read_text", fails)
    assert gather_machine.states() == ([], {"qwen": "cannot be read: Input/output error"})


def test_a_stack_is_read_without_importing_any_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raising = "raise RuntimeError('imported')\n"
    tree(tmp_path, {
        "torch/__init__.py": raising, "torch/version.py": "cuda: Optional[str] = '13.0'\n",
        "nixl_cu13/__init__.py": raising, "nixl_cu13.libs/ucx/libuct_cuda.so.0.0.0": "",
        "nixl_cu13.libs/ucx/libuct_ib_mlx5.so.0": "", "nixl_cu13.libs/ucx/libuct_ib.so.0": "",
        "kvcached-0.1.6.dist-info/METADATA": "Metadata-Version: 2.1\nName: kvcached\nVersion: 0.1.6\n",
    })  # fmt: skip
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = gather_environment.stack(sys.executable)
    assert (found.cuda, found.kvcached) == ("13.0", "0.1.6")
    assert found.nixl == {13: {"cuda", "ib"}}


def test_what_is_installed_here_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real interpreter of the engines, where there is one."""
    engines = Path(__file__).parents[2] / ".venv-engine" / "bin" / "python"
    if not engines.is_file():
        pytest.skip("no .venv-engine is beside the checkout")
    began = time.monotonic()
    found = gather_environment.environment(str(engines), "KVSERVING_ENGINE_PYTHON")
    assert found.problem == ""
    assert found.nixl is not None
    assert found.stack.nixl, "NIXL's wheels have a build for a CUDA"
    assert all("cuda" in transports and "ib" in transports for transports in found.stack.nixl.values())
    assert time.monotonic() - began < 120


def test_the_hub_is_reached_by_a_connection_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        there = {"HF_ENDPOINT": f"http://127.0.0.1:{port}"}
        assert asyncio.run(hub.reach(there)) == {f"127.0.0.1:{port}": ""}
        assert asyncio.run(hub.reach({**there, "HF_HUB_OFFLINE": "1"})) == {}
        assert asyncio.run(hub.reach({**there, "https_proxy": "http://p"})) == {}
    (problem,) = asyncio.run(hub.reach(there)).values()
    assert problem.startswith("no connection")


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://[::1", "'http://[:***' has brackets or letters that no host name has"),
        ("http://me:hunter2@hub:http", "'http://***@hub:***' has a port that is no number from 1 to 65535"),
        ("hub.example", "'hub.example' has no http:// or https://"),
        ("https://", "'https://' names no host"),
        ("https://.huggingface.co", "'https://.huggingface.co' has a host name with a part that is empty, or longer"),
        (
            f"https://{'a' * 70}.co",
            f"'https://{'a' * 51}… has a host name with a part that is empty, or longer than 63",
        ),
    ],
)
def test_a_hub_that_is_no_address_is_told_with_its_variable_and_the_way_out(endpoint: str, said: str) -> None:
    told = asyncio.run(hub.reach({"HF_ENDPOINT": endpoint}))
    assert list(told) == ["HF_ENDPOINT"]
    assert told["HF_ENDPOINT"].startswith(said)
    assert told["HF_ENDPOINT"].endswith(f": write it as {hub.HUB}")


def test_an_interpreter_that_is_none_is_a_problem_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSERVING_ENGINE_PYTHON", "/no/such/python")
    assert "/no/such/python is not a program" in gather_environment.environment(None, "KVSERVING_ENGINE_PYTHON").problem


@pytest.mark.parametrize("printed", ["\\377\\376", "{}", "[]", "3", '{"vllm": 3}', "[" * 5000])
def test_an_interpreter_that_prints_something_else_is_a_problem_and_no_exception(tmp_path: Path, printed: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    program.chmod(0o755)
    found = gather_environment.environment(str(program), "KVSERVING_ENGINE_PYTHON")
    assert f"{program} does not run as Python: it prints something else than it was asked for" in found.problem


@pytest.mark.parametrize("printed", ["{}", '{"nixl": {"x": []}}', '{"nixl": []}'])
def test_a_stack_that_is_told_in_another_shape_is_a_problem(tmp_path: Path, printed: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    program.chmod(0o755)
    with pytest.raises(EnvironmentFault, match="it prints something else than it was asked for"):
        gather_environment.stack(str(program))
