"""Loopback networks that no two users have at once, whichever process they are in."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.controlplane import loopback
from e2e.controlplane.loopback import Network

ROOT = Path(__file__).parents[3]


def test_a_network_is_nobody_elses_until_it_is_released_or_its_process_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two of the last ones: kubelets of other tests take the first that are free.
    monkeypatch.setattr(loopback, "NETWORKS", loopback.NETWORKS[-2:])
    code = (
        "import sys, time\nfrom e2e.controlplane import loopback\nloopback.NETWORKS = loopback.NETWORKS[-2:]\n"
        "held = loopback.Network()\nprint(held.name, flush=True)\ntime.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        theirs = other.stdout.readline().strip()
        ours = Network()
        assert {theirs, ours.name} == set(loopback.NETWORKS)
        with pytest.raises(OSError, match=r"all loopback networks .* are in use"):
            Network()
    finally:
        other.kill()
        other.communicate()
    again = Network()
    assert again.name == theirs
    for network in (ours, again):
        network.release()
    last = Network()
    assert last.name == loopback.NETWORKS[0]
    last.release()


def test_networks_are_apart_from_each_other_and_from_the_executors() -> None:
    found = [ipaddress.IPv4Network(network) for network in loopback.NETWORKS]
    assert not any(a.overlaps(b) for a in found for b in found if a is not b)
    assert all(network.is_loopback for network in found)
    assert max(network.broadcast_address for network in found) < ipaddress.IPv4Address("127.64.0.1")
