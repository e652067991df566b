"""What the lane leaves on a machine goes away again, also when nobody is there any more who made it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cluster import cgroups, machine
from e2e.cluster.images import ROOT
from e2e.cluster.layout import BRIDGE, CGROUP, ENVIRONMENT, RUN, STATE

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


@pytest.fixture
def prepared() -> Iterator[str]:
    """A machine as a lane has it that has just begun; whether it forwarded packets before."""
    try:
        machine.fit()
    except machine.NotFit as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(reason))
    forward = FORWARD.read_text()
    claimed = machine.claim()
    machine.prepare()
    yield forward
    machine.clean()
    machine.release(claimed)


def test_every_trace_is_named_and_removed(prepared: str) -> None:
    """As after the lane's own process was killed: processes, mounts and chains are all that tells."""
    assert FORWARD.read_text().strip() == "1"
    process = subprocess.Popen(["sleep", "600"])
    for hierarchy in cgroups.hierarchies():
        group = hierarchy / CGROUP / "pod"
        group.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (group / name).is_file():
                (group / name).write_text((group.parent / name).read_text())
        (group / "cgroup.procs").write_text(str(process.pid))
    volume = STATE / "a volume"
    volume.mkdir()
    machine.run("mount", "-t", "tmpfs", "tmpfs", str(volume))
    for command in (("-N", "KUBE-TEST"), ("-A", "KUBE-TEST", "-j", "RETURN"), ("-A", "OUTPUT", "-j", "KUBE-TEST")):
        machine.run("iptables", "-t", "nat", *command)
    found = "\n".join(machine.left())
    for trace in (f"process {process.pid}", str(volume), BRIDGE, "chain KUBE-TEST", CGROUP, str(RUN), str(STATE)):
        assert trace in found
    machine.clean()
    assert machine.left() == []
    assert process.wait(10) == -9
    assert FORWARD.read_text() == prepared
    machine.clean()


def test_a_second_lane_is_refused_and_says_by_whom(prepared: str) -> None:
    command = [sys.executable, "-m", "e2e.cluster", "up"]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/operator/src"}
    ways = {"`python -m e2e.cluster down` first": False, f"`. {ENVIRONMENT}` makes a shell use it, `python": True}
    for way, up in ways.items():
        if up:
            ENVIRONMENT.touch()
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert f"process {os.getpid()} runs a lane on this machine: {way}" in done.stdout


def test_where_nothing_runs_its_end_says_so() -> None:
    if os.geteuid() != 0 or machine.left() or machine.holder() is not None:
        pytest.skip("needs root, and a machine without a lane")
    assert _down() == (0, "there is no cluster\n", "")


def test_the_end_of_what_a_killed_lane_left_says_that_it_is_gone() -> None:
    if os.geteuid() != 0 or machine.left() or machine.holder() is not None:
        pytest.skip("needs root, and a machine without a lane")
    STATE.mkdir()
    ENVIRONMENT.parent.mkdir()
    ENVIRONMENT.touch()
    assert _down() == (0, "the cluster is gone\n", "")
    assert not ENVIRONMENT.exists()
    assert machine.left() == []


def _down() -> tuple[int, str, str]:
    command = [sys.executable, "-m", "e2e.cluster", "down"]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/operator/src"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_chains_of_another_cluster_are_not_touched() -> None:
    if os.geteuid() != 0 or machine.left():
        pytest.skip("needs root, and a machine without a lane")
    machine.run("iptables", "-t", "nat", "-N", "KUBE-TEST")
    try:
        with pytest.raises(machine.NotFit, match="node of another cluster already: iptables has the chain KUBE-TEST"):
            machine.fit()
        machine.clean()
        assert machine.left() == ["chain KUBE-TEST of iptables nat"]
    finally:
        machine.run("iptables", "-t", "nat", "-X", "KUBE-TEST")
