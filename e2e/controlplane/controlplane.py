"""A real control plane on this machine: etcd, kube-apiserver and kube-controller-manager, up in about two seconds.

    with ControlPlane(crds=Path("crds").glob("*.yaml")) as plane:
        namespace = plane.namespace()
        plane.api.create({...})
        plane.apiserver.restart()

Several can run at once: each has its own free loopback ports, certificates and folder. Nothing outlives the test
run: the programs are killed when the interpreter ends in whatever way, and the folder is removed on exit.

There is no scheduler and no kubelet: pods stay Pending until ``FakeKubelet`` plays their node. The node lifecycle
controller is off, because that stand-in sends no heartbeats. Endpoints of pods on loopback addresses are refused by
the apiserver's validation; give the kubelet another network where a test looks at EndpointSlices.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import urllib3
from e2e.controlplane import build
from e2e.controlplane.cluster import Cluster
from e2e.controlplane.pki import Authority, Credentials
from e2e.controlplane.process import Component, ComponentFailed

_ATTEMPTS = 3
_PREFIX = "kvserving-controlplane-"
running: list[ControlPlane] = []
"""Those that are up, for whoever reports a failed test."""


class ControlPlane(Cluster):
    """A control plane of its own, as a context manager. All of it is synchronous; methods are thread-safe to read.

    ``crds`` are applied before the controller-manager starts: its garbage collector looks for new kinds only every
    30 seconds, and until then deleting an owner of a new kind leaves its children.
    ``controller_manager=False`` leaves that program out (also to be started later by ``controller_manager.start()``).
    Further arguments are appended to those of the program and win over ours. ``address`` is where the apiserver
    listens, one of this machine.
    """

    owned = True

    def __init__(
        self,
        *,
        controller_manager: bool = True,
        crds: Iterable[Path] = (),
        apiserver_args: Sequence[str] = (),
        controller_manager_args: Sequence[str] = (),
        programs: build.Programs | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        self.address = address
        self._programs = programs or build.programs()
        if controller_manager and self._programs.controller_manager is None:
            raise build.ProgramsMissing(
                "KUBEBUILDER_ASSETS has no kube-controller-manager: add it there, or unset the variable to build it"
            )
        self._crds = list(crds)
        self._with_controllers = controller_manager
        self._apiserver_args = list(apiserver_args)
        self._manager_args = list(controller_manager_args)
        self._keep_logs = False
        self.started_in: float = 0.0
        """Seconds that the start took."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.keep_logs()
        self.stop()

    def start(self) -> None:
        """Start everything and return when it serves. Raises ``ComponentFailed`` with the logs' last lines."""
        for attempt in range(1, _ATTEMPTS + 1):
            started = time.monotonic()
            try:
                self._start()
            except BaseException as error:
                taken = isinstance(error, ComponentFailed) and "address already in use" in str(error)
                if not taken or attempt == _ATTEMPTS:
                    self.keep_logs()
                self.stop()
                if not taken or attempt == _ATTEMPTS:
                    raise
            else:
                self.started_in = time.monotonic() - started
                running.append(self)
                return

    def stop(self) -> None:
        """Kill all programs and remove the folder; kept logs are moved out and their place is printed."""
        if self in running:
            running.remove(self)
        for component in (self.controller_manager, self.apiserver, self.etcd):
            component.kill()
        if self._keep_logs:
            kept = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}logs-"))
            shutil.copytree(self.folder / "logs", kept, dirs_exist_ok=True)
            print(f"control plane: logs are in {kept}")
        shutil.rmtree(self.folder, ignore_errors=True)
        self._owner.close()

    def keep_logs(self) -> None:
        """Keep the logs when the control plane stops (called when a test failed)."""
        self._keep_logs = True

    def tails(self, lines: int = 25) -> str:
        """Return the last lines of every program's log."""
        return "\n".join(c.tail(lines) for c in (self.etcd, self.apiserver, self.controller_manager))

    @property
    def has_controllers(self) -> bool:
        """Whether the controller-manager runs now."""
        return self.controller_manager.pid is not None

    def user(self, name: str, groups: Sequence[str] = ()) -> Credentials:
        """Return a client certificate for ``name``; what it may do is said by ``grant``. It cannot pass a proxy."""
        return self.authority.client(name, groups)

    def compact(self) -> None:
        """Drop etcd's history: a watch or list from an older resourceVersion is answered 410 from now on.

        The apiserver's own cache still answers for what it remembers; ``apiserver.restart()`` empties that.
        """
        answer = self._http.request(
            "POST", f"{self._etcd_url}/v3/kv/range", body=json.dumps({"key": "AA==", "limit": 1}), timeout=10
        )
        revision = answer.json()["header"]["revision"]
        done = self._http.request(
            "POST", f"{self._etcd_url}/v3/kv/compaction", body=json.dumps({"revision": revision}), timeout=10
        )
        if done.status != 200:
            raise ComponentFailed(f"etcd refused to compact: {done.status} {done.data.decode(errors='replace')}")

    def _start(self) -> None:
        remove_abandoned()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._owner = _owned(folder)
        (folder / "logs").mkdir()
        etcd_port, peer_port, port, manager_port = free_ports(4)
        self.authority = Authority.create(folder / "pki", self.address)
        self._http = urllib3.PoolManager(retries=False, ca_certs=str(self.authority.ca_file))
        self._etcd_url = f"http://127.0.0.1:{etcd_port}"
        self.folder = folder
        server = f"https://{self.address}:{port}"
        self.etcd = self._component("etcd", self._etcd_command(peer_port), f"{self._etcd_url}/health")
        self.apiserver = self._component("kube-apiserver", self._apiserver_command(port), f"{server}/readyz")
        self.controller_manager = self._component(
            "kube-controller-manager", self._manager_command(manager_port), f"https://127.0.0.1:{manager_port}/healthz"
        )
        self.etcd.start()
        token = secrets.token_hex(16)
        tokens = folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{token},tests,tests,"system:masters"\n')
        super().__init__(server, self.authority.ca_file, Credentials("tests", token=token), folder)
        self._token = token
        self.apiserver.start()
        self.apply_crds(self._crds)
        self.kubeconfig().rename(folder / "admin.kubeconfig")
        if self._with_controllers:
            self.controller_manager.start()

    def _component(self, name: str, command: Sequence[str], probe: str) -> Component:
        def ready() -> bool:
            # That a program is down is an answer here, not an error.
            try:
                return self._http.request("GET", probe, timeout=2).status == 200
            except urllib3.exceptions.HTTPError:
                return False

        return Component(name, command, self.folder / "logs" / f"{name}.log", ready)

    def _etcd_command(self, peer_port: int) -> list[str]:
        peer = f"http://127.0.0.1:{peer_port}"
        return [
            *(str(self._programs.etcd), "--name=tests", f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={self._etcd_url}", f"--advertise-client-urls={self._etcd_url}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=tests={peer}"),
        ]

    def _apiserver_command(self, port: int) -> list[str]:
        pki = self.folder / "pki"
        return [
            *(str(self._programs.apiserver), f"--etcd-servers={self._etcd_url}", f"--secure-port={port}"),
            *(
                f"--bind-address={self.address}",
                f"--advertise-address={self.address}",
                "--endpoint-reconciler-type=none",
            ),
            *(f"--client-ca-file={pki}/ca.crt", f"--token-auth-file={self.folder}/tokens.csv"),
            *(f"--tls-cert-file={pki}/server.crt", f"--tls-private-key-file={pki}/server.key"),
            *("--authorization-mode=Node,RBAC", "--allow-privileged", "--profiling=false"),
            *("--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={pki}/sa.pub"),
            *(f"--service-account-signing-key-file={pki}/sa.key", "--service-cluster-ip-range=10.96.0.0/16"),
            *self._apiserver_args,
        ]

    def _manager_command(self, port: int) -> list[str]:
        pki = self.folder / "pki"
        return [
            *(str(self._programs.controller_manager), f"--kubeconfig={self.folder}/admin.kubeconfig"),
            *("--bind-address=127.0.0.1", f"--secure-port={port}", "--leader-elect=false", "--profiling=false"),
            *("--controllers=*,-node-lifecycle-controller", "--kube-api-qps=500", "--kube-api-burst=1000"),
            "--horizontal-pod-autoscaler-sync-period=1s",
            *(f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt"),
            *(f"--tls-cert-file={pki}/server.crt", f"--tls-private-key-file={pki}/server.key"),
            *self._manager_args,
        ]


def free_ports(count: int) -> list[int]:
    """Return ``count`` loopback ports that nothing listens on, below the range that outgoing connections use.

    A port of that range could be taken while its server restarts, even by the client that waits for it: on loopback
    a connection attempt from a port to itself succeeds. Workers of one test run are given different ports: until a
    server listens, nothing tells another worker that its port is taken.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10240 + worker % workers, max(lowest, 20480), workers)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def _owned(folder: Path) -> IO[str]:
    """Mark ``folder`` as in use until the returned file is closed, by whatever end of this process."""
    file = (folder / "owner.new").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    # Renamed only once it is locked: a lock that is not held yet would look like an abandoned folder.
    (folder / "owner.new").rename(folder / "owner")
    return file


def remove_abandoned() -> None:
    """Remove the folders of test runs that were killed."""
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/owner"):
        try:
            with owner.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)
        except (BlockingIOError, FileNotFoundError, PermissionError):
            # In use, removed by another run, or of another user.
            continue
