"""A whole Kubernetes on this machine: the control plane of ``e2e.controlplane``, and one node that runs pods.

    with Node() as node:
        node.load(archive)
        node.plane.api.create({...})
        node.containerd.restart()

One at a time: it takes fixed addresses, folders and a control group. What pods run outlives containerd and kubelet, as
on any node, and is ended when the node is.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import urllib3
from e2e.cluster import build, machine, oci, packages, settings
from e2e.cluster.layout import ADDRESS, CONTAINERD, CONTAINERS, DOMAIN, NODE, PAUSE_IMAGE, STATE
from e2e.controlplane.api import Json
from e2e.controlplane.build import Say
from e2e.controlplane.build import programs as control_plane_programs
from e2e.controlplane.controlplane import ControlPlane, free_ports
from e2e.controlplane.process import Component

_LOGS = STATE / "programs"
_SETTINGS = STATE / "settings"
_DNS_RULES = (
    {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
)


class NodePlane(ControlPlane):
    """A control plane whose apiserver reaches a kubelet, and is reached by pods as ``kubernetes.default``."""

    def _apiserver_command(self, port: int) -> list[str]:
        who = self.authority.client("kube-apiserver", ["system:masters"])
        return [
            *super()._apiserver_command(port),
            "--endpoint-reconciler-type=lease",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={who.cert_file}",
            f"--kubelet-client-key={who.key_file}",
        ]

    def _manager_command(self, port: int) -> list[str]:
        # Here is a kubelet that sends heartbeats, and the taint of a new node is for the controllers to take away.
        return [argument for argument in super()._manager_command(port) if not argument.startswith("--controllers=")]


class Node:
    """The cluster, as a context manager. The programs are built by the first; packages are asked for first of all."""

    def __init__(self, *, say: Say = print) -> None:
        self._say = say
        self._started: list[Component] = []
        self.started_in: float = 0.0
        """Seconds that the start took, builds left out."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and return when the node is Ready; what was started is ended again when one part fails."""
        programs, plane_programs = build.programs(say=self._say), control_plane_programs(say=self._say)
        machine.fit()
        started = time.monotonic()
        self._claim = machine.claim()
        try:
            machine.prepare()
            self.plane = NodePlane(programs=plane_programs, address=ADDRESS)
            self.plane.start()
            self._start_node(programs)
        except BaseException:
            kept = Path(tempfile.mkdtemp(prefix="kvserving-cluster-logs-"))
            if _LOGS.exists():
                shutil.copytree(_LOGS, kept, dirs_exist_ok=True)
            self._say(f"cluster: logs are in {kept}")
            self.stop()
            raise
        self.started_in = time.monotonic() - started

    def stop(self) -> None:
        """End everything that runs and remove every trace of it from the machine."""
        for component in reversed(self._started):
            component.stop()
        self._started.clear()
        if hasattr(self, "plane"):
            self.plane.stop()
        machine.clean()
        machine.release(self._claim)

    def load(self, archive: Path) -> None:
        """Import the images of an OCI archive."""
        machine.run("ctr", f"--address={CONTAINERD}", f"--namespace={CONTAINERS}", "images", "import", str(archive))

    def logs(self) -> list[Path]:
        """Return the logs of all programs."""
        return sorted((*_LOGS.glob("*.log"), *(self.plane.folder / "logs").glob("*.log")))

    def _start_node(self, programs: build.NodePrograms) -> None:
        for folder in (_LOGS, _SETTINGS, STATE / "network"):
            folder.mkdir(parents=True)
        (STATE / "network" / "10-kvserving.conflist").write_text(settings.network())
        kubelet_port, proxy_port, proxy_metrics, dns_port, scheduler_port = free_ports(5)
        config = self._settings("containerd.toml", settings.containerd(STATE / "network"))
        self.containerd = self._started_component(
            "containerd", [packages.program("containerd") or "containerd", f"--config={config}"], _containerd_answers
        )
        self._load_pause(programs.pause)
        certificate, key = self.plane.authority.server
        scheduler_kubeconfig = self._kubeconfig("system:kube-scheduler")
        self.scheduler = self._started_component(
            "kube-scheduler",
            [
                *(str(programs.scheduler), f"--kubeconfig={scheduler_kubeconfig}", "--leader-elect=false"),
                *("--bind-address=127.0.0.1", f"--secure-port={scheduler_port}", "--profiling=false"),
                *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"),
            ],
            _answers(f"https://127.0.0.1:{scheduler_port}/healthz", self.plane.authority.ca_file),
        )
        self._start_kubelet(programs.kubelet, kubelet_port)
        proxy_kubeconfig = self._kubeconfig("system:kube-proxy")
        text = settings.proxy(kubeconfig=proxy_kubeconfig, health_port=proxy_port, metrics_port=proxy_metrics)
        config = self._settings("proxy.json", text)
        self.proxy = self._started_component(
            "kube-proxy",
            [str(programs.proxy), f"--config={config}"],
            _answers(f"http://127.0.0.1:{proxy_port}/healthz"),
        )
        self.plane.grant("system:coredns", _DNS_RULES)
        dns_kubeconfig = self._kubeconfig("system:coredns")
        config = self._settings("Corefile", settings.names(kubeconfig=dns_kubeconfig, ready_port=dns_port))
        self.dns = self._started_component(
            "coredns", [str(programs.dns), "-conf", str(config)], _answers(f"http://127.0.0.1:{dns_port}/ready")
        )
        self.plane.api.wait(f"/api/v1/nodes/{NODE}", _ready, what=f"{NODE} is Ready", timeout=60)

    def _start_kubelet(self, kubelet: Path, port: int) -> None:
        authority = self.plane.authority
        config = self._settings("kubelet.json", settings.kubelet(client_ca=authority.ca_file, health_port=port))
        kubeconfig = self._kubeconfig(f"system:node:{NODE}", "system:nodes")
        self.kubelet = self._started_component(
            "kubelet",
            [
                *(str(kubelet), f"--config={config}", f"--kubeconfig={kubeconfig}", f"--hostname-override={NODE}"),
                *(f"--node-ip={ADDRESS}", f"--root-dir={STATE}/kubelet", f"--cert-dir={_SETTINGS}/kubelet"),
            ],
            _answers(f"http://127.0.0.1:{port}/healthz"),
        )

    def _load_pause(self, program: Path) -> None:
        archive = STATE / "pause.tar"
        oci.write(archive, PAUSE_IMAGE, oci.Content(files={"/pause": program}), {"Entrypoint": ["/pause"]})
        self.load(archive)

    def _kubeconfig(self, user: str, *groups: str) -> Path:
        return self.plane.kubeconfig(self.plane.user(user, groups))

    def _settings(self, name: str, text: str) -> Path:
        file = _SETTINGS / name
        file.write_text(text)
        return file

    def _started_component(self, name: str, command: Sequence[str], ready: Callable[[], bool]) -> Component:
        component = Component(name, command, _LOGS / f"{name}.log", ready)
        self._started.append(component)
        component.start()
        return component


def service_host(name: str, namespace: str) -> str:
    """Return the name of a Service inside the cluster."""
    return f"{name}.{namespace}.svc.{DOMAIN}"


def _ready(node: Json | None) -> bool:
    """Whether pods are sent there: the taint of a new node goes when it is Ready."""
    found = {c["type"]: c["status"] for c in ((node or {}).get("status") or {}).get("conditions") or []}
    return found.get("Ready") == "True" and not (node or {})["spec"].get("taints")


def _containerd_answers() -> bool:
    try:
        machine.run("ctr", f"--address={CONTAINERD}", "--connect-timeout=1s", "version")
    except RuntimeError:
        return False
    return True


def _answers(page: str, authority: Path | None = None) -> Callable[[], bool]:
    http = urllib3.PoolManager(retries=False, ca_certs=str(authority) if authority else None)

    def ready() -> bool:
        # That a program is down is an answer here, not an error.
        try:
            return http.request("GET", page, timeout=2).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    return ready
