"""The operator as a process under test: its own user, a fault proxy in between, metrics and logs to look at."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import urllib3
from e2e.controlplane.cluster import Cluster
from e2e.controlplane.controlplane import free_ports

from kvserving_operator.control.permissions import rules

ROOT = Path(__file__).parents[2]
_PATH = os.pathsep.join((str(ROOT), str(ROOT / "operator" / "src")))
_POLL = 0.02
_HTTP = urllib3.PoolManager(retries=False)


class OperatorEnded(Exception):
    """The operator ended; the message ends with the last lines of its log."""


class Forked:
    """An operator with stand-ins (``stub_probe.serve``), forked from a process that has imported it, as a Popen."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._process = _forks().Process(target=_serve, args=(list(arguments), dict(env), str(log)), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended; raise ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("operator", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self._process.kill()


def _serve(arguments: Sequence[str], env: Mapping[str, str], log: str) -> None:
    # Imported here, as the tests' own processes need nothing of the operator.
    from e2e.operator import stub_probe

    stub_probe.serve(arguments, env, log)


@functools.cache
def _forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "e2e.operator.stub_probe"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = _PATH
    try:
        # Its process takes this environment when it starts, and then imports.
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


@dataclass
class Operator:
    """One operator process. ``start`` again after ``stop`` or ``kill`` restarts it with the same settings.

    With ``stub`` it is one whose probes are a stand-in (``stub_probe``), else the product as it is.
    """

    kubeconfig: Path
    log: Path
    own_namespace: str
    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    stub: bool = False
    port: int = 0
    process: subprocess.Popen[bytes] | Forked | None = None

    def start(self, *, wait: bool = True) -> Operator:
        """Start the process and return when it is ready, or at once without ``wait``."""
        self.port = free_ports(1)[0]
        arguments = [
            *(f"--listen=127.0.0.1:{self.port}", f"--kubeconfig={self.kubeconfig}"),
            *(f"--own-namespace={self.own_namespace}", *self.arguments),
        ]
        self.log.touch()
        if self.stub:
            self.process = Forked(arguments, self.env, self.log)
        else:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "kvserving_operator", "operator", "run", *arguments],
                    env={**os.environ, "PYTHONPATH": _PATH, **self.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout: float = 90) -> None:
        """Return when ``/readyz`` says so; raise when the process ends or is late."""
        deadline = time.monotonic() + timeout
        while True:
            assert self.process is not None
            if (code := self.process.poll()) is not None:
                raise OperatorEnded(f"the operator ended with {code}\n{self.tail()}")
            try:
                answer = self.get("/readyz")
                if answer.status == 200 and json.loads(answer.data)["role"] == "active":
                    return
            except urllib3.exceptions.HTTPError:
                pass
            if time.monotonic() > deadline:
                raise OperatorEnded(f"the operator is not ready after {timeout:.0f} s\n{self.tail()}")
            time.sleep(_POLL)

    def get(self, path: str) -> urllib3.BaseHTTPResponse:
        """Read one of its pages."""
        return _HTTP.request("GET", f"http://127.0.0.1:{self.port}{path}", timeout=30)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of one series that carry ``labels``; a sample without these is a mistake."""
        total = 0.0
        for line in self.get("/metrics").data.decode().splitlines():
            found = re.match(r"([a-z_:]+)(?:\{(.*)\})? (\S+)", line)
            if found is None or found[1] != name:
                continue
            carried = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
            if missing := labels.keys() - carried.keys():
                raise LookupError(f"{name} has no label {', '.join(sorted(missing))}: {line}")
            if labels.items() <= carried.items():
                total += float(found[3])
        return total

    def stop(self, timeout: float = 20) -> int:
        """Ask the process to end and return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def wait(self, timeout: float = 30) -> int:
        """Return the exit code once the process has ended."""
        assert self.process is not None
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise OperatorEnded(f"the operator did not end within {timeout:.0f} s\n{self.tail(80)}") from None

    def end(self) -> None:
        """Make sure that the process is gone."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines of the log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def tail(self, count: int = 40) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


def operator_user(cluster: Cluster, namespace: str) -> Any:
    """Return a service account that has what the RBAC manifests grant, and nothing else."""
    return cluster.service_account(namespace, "kvserving-operator", rules("own"), cluster_rules=rules("served"))
