"""The operator as a process under test: its own user, a fault proxy in between, metrics and logs to look at."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3
from e2e.controlplane.cluster import Cluster
from e2e.controlplane.controlplane import free_ports

from kvserving_operator.control.permissions import rules

ROOT = Path(__file__).parents[2]
_POLL = 0.02
_HTTP = urllib3.PoolManager(retries=False)


class OperatorEnded(Exception):
    """The operator ended; the message ends with the last lines of its log."""


@dataclass
class Operator:
    """One operator process. ``start`` again after ``stop`` or ``kill`` restarts it with the same settings.

    ``module`` is what Python runs: the product's command line, or a script that puts something in its place.
    """

    kubeconfig: Path
    log: Path
    own_namespace: str
    arguments: Sequence[str] = ()
    program: Sequence[str] = ("-m", "kvserving_operator", "operator", "run")
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> Operator:
        """Start the process and return when it is ready, or at once without ``wait``."""
        self.port = free_ports(1)[0]
        path = os.pathsep.join((str(ROOT), str(ROOT / "operator" / "src")))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, *self.program, f"--listen=127.0.0.1:{self.port}"),
                    *(f"--kubeconfig={self.kubeconfig}", f"--own-namespace={self.own_namespace}", *self.arguments),
                ],
                env={**os.environ, "PYTHONPATH": path, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout: float = 30) -> None:
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
        """Return the sum of the samples of one series that carry ``labels``."""
        total = 0.0
        for line in self.get("/metrics").data.decode().splitlines():
            found = re.match(r"([a-z_:]+)(?:\{(.*)\})? (\S+)", line)
            if (
                found
                and found[1] == name
                and all(f'{key}="{value}"' in (found[2] or "") for key, value in labels.items())
            ):
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
