"""One service at a time on this machine, brought up by the command that users run."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvserving_operator.api.load import load
from kvserving_operator.local import client, procfs
from kvserving_operator.local.prepare import Options, digest, prepare
from kvserving_operator.local.run import Run
from kvserving_operator.local.state import STOPPING, ServiceDir

REPOSITORY = Path(__file__).resolve().parents[2]
UP_SECONDS = 400
DOWN_SECONDS = 120
LEASE_SECONDS = 10


@dataclass(frozen=True)
class Topology:
    """A service to bring up: the model's folder, engines per role and the router. ``name`` is for people."""

    name: str
    model: Path
    prefill: int = 1
    decode: int = 1
    router: str = "smg"
    args: tuple[str, ...] = ("--dtype=float32",)
    staging: str = ""
    """Size of the pools of staged transfers; none without."""

    def text(self, name: str) -> str:
        """Return the object under ``name``; JSON is YAML."""
        roles = {"decode": {"replicas": self.decode}}
        if self.prefill:
            roles["prefill"] = {"replicas": self.prefill}
        spec = {
            "model": {"uri": f"file://{self.model}", "name": "tiny"},
            "engine": {"device": "cpu", "args": ["--enforce-eager", "--max-model-len=4096", *self.args]},
            **roles,
            # Stopping a prefill waits for its leases.
            "transfer": {"lease": f"{LEASE_SECONDS}s", **({"stagingMemory": self.staging} if self.staging else {})},
            "router": {"type": self.router},
        }
        return json.dumps(
            {"apiVersion": "kvserving.dev/v1alpha1", "kind": "KVServing", "metadata": {"name": name}, "spec": spec}
        )


@dataclass(frozen=True)
class Service:
    """A service that is up."""

    topology: Topology
    directory: ServiceDir
    url: str

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.directory.name

    def state(self) -> dict[str, Any]:
        """Return state.json as it is now."""
        found: dict[str, Any] = json.loads(self.directory.state_file.read_text())
        return found

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods of a role, in order of name."""
        return sorted((pod for pod in self.state()["pods"] if pod["role"] == role), key=lambda pod: pod["name"])

    def engine_url(self, role: str, number: int = 0) -> str:
        """Return the address of one engine."""
        pod = self.pods(role)[number]
        return f"http://{pod['address']}:{pod['port']}"

    def wait(self, holds: Callable[[dict[str, Any]], bool], seconds: float, what: str) -> float:
        """Wait until ``holds`` of the state; return how long it took."""
        return _wait(lambda: holds(self.state()), seconds, what, self.logs)

    def logs(self, lines: int = 40) -> str:
        """Return the end of every log."""
        return "\n".join(
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
            for path in sorted(self.directory.logs.glob("*.log"))
        )


@dataclass
class Stage:
    """Brings topologies up, at most one at a time; asking for the one that is up costs nothing."""

    folder: Path
    engine_python: str
    numbers: list[str] = field(default_factory=list)
    token: str = field(default_factory=lambda: secrets.token_hex(3))
    """Ends the names of this session's services: addresses follow from names, and others test on this machine too."""
    up_seconds: float = UP_SECONDS
    _current: Service | None = None

    def show(self, topology: Topology) -> Service:
        """Return the service of ``topology``, brought up unless it is."""
        if self._current is not None and self._current.topology == topology:
            return self._current
        self.clear()
        port = free_port()
        service = Service(topology, self._directory(topology), f"http://127.0.0.1:{port}")
        self._current = service
        file = self.folder / f"{service.name}.yaml"
        file.write_text(topology.text(service.name))
        started = time.monotonic()
        done = self.kvserving("up", str(file), "--detach", f"--listen=127.0.0.1:{port}", timeout=self.up_seconds)
        if done.returncode != 0:
            logs = service.logs()
            self.clear()
            raise AssertionError(f"kvserving up {topology.name} ended with {done.returncode}:\n{done.stdout}\n{logs}")
        self.numbers.append(f"{topology.name}: ready and verified after {time.monotonic() - started:.0f} s")
        return service

    def show_changed(self, topology: Topology, change: Callable[[Run], Run]) -> Service:
        """Bring up ``topology`` with its run changed, as no object can; it need not become ready."""
        self.clear()
        directory = self._directory(topology)
        port = free_port()
        options = Options(listen=("127.0.0.1", port), engine_python=self.engine_python, timeout=UP_SECONDS)
        serving = load(topology.text(directory.name), strict=True, base_dir=self.folder)
        lock = client.claim(directory.name, digest(serving), directory)
        run = change(prepare(serving, options, directory, lambda _: None))
        self._current = Service(topology, directory, f"http://127.0.0.1:{port}")
        client.start_detached(run, directory, lock, lambda _: None)
        return self._current

    def clear(self) -> None:
        """Stop what is up at once: the first signal asks for a stop in order, the second for haste."""
        if self._current is None:
            return
        directory, self._current = self._current.directory, None
        state = directory.read()
        if state is None or not state.supervised:
            return
        for _ in range(2):
            procfs.send([int(state.supervisor["pid"])], signal.SIGTERM)
            _wait(lambda: (now := directory.read()) is None or now.phase == STOPPING, DOWN_SECONDS, "it stops")
        _wait(lambda: not state.supervised, DOWN_SECONDS, f"{state.name} is stopped")

    def kvserving(self, *args: str, timeout: float = 120, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command, with what is ``typed`` on its standard input; return its status and what it printed."""
        environment = {
            **os.environ,
            "KVSERVING_STATE_DIR": str(self.folder / "state"),
            "KVSERVING_ENGINE_PYTHON": self.engine_python,
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part / "src") for part in ("operator", "connector")),
        }
        return subprocess.run(
            [sys.executable, "-m", "kvserving_operator", *args],
            env=environment,
            input=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def _directory(self, topology: Topology) -> ServiceDir:
        return ServiceDir(f"{topology.name}-{self.token}", self.folder / "state")


def _wait(holds: Callable[[], bool], seconds: float, what: str, logs: Callable[[], str] = str) -> float:
    started = time.monotonic()
    while not holds():
        if time.monotonic() - started > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}\n{logs()}")
        time.sleep(0.2)
    return time.monotonic() - started


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
