"""The lane: the node, its images, and the operator that helm installs.

with Lane(make()) as lane:
    lane.install()
    lane.kubectl("apply", "-f", "examples/cluster-without-gpu.yaml")
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.cluster import build, images, objects, oci, packages
from e2e.cluster.layout import STATE
from e2e.cluster.node import Node
from e2e.controlplane import build as plane_build
from e2e.controlplane.build import Say
from tests.chart import programs
from tests.chart.charts import CHART, NAME, NAMESPACE, Helm

RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


@dataclass(frozen=True)
class Built:
    """What a lane needs that is built: its images, and the programs that its user runs."""

    kubectl: Path
    helm: Path
    archives: Mapping[str, Path]
    """Archives of images, by their names."""


def make(*, say: Say = print) -> Built:
    """Build everything that the cache lacks. Raises what packages, programs and images raise."""
    packages.require(say=say)
    say("step 1 of 5: the node's programs, with DNS; what was built before is kept, in every step")
    build.programs(say=say)
    say("step 2 of 5: the control plane")
    plane_build.programs(say=say)
    say("step 3 of 5: kubectl and helm")
    kubectl, helm = plane_build.kubectl(say=say), programs.program("helm", say=say)
    say("step 4 of 5: images")
    return Built(kubectl, helm, archives(images.ALL, say=say))


def archives(wanted: Iterable[images.Image], *, say: Say = print) -> dict[str, Path]:
    """Build images in the order in which they are named; return their archives by their names."""
    builder, order = images.Builder(say=say), tuple(wanted)
    found = {}
    for number, image in enumerate(order, 1):
        say(f"cluster: {image.name} ({number} of {len(order)}) ...")
        found[image.name] = builder.archive(image)
    return found


class Lane:
    """A cluster that has the images of ``built``, as a context manager."""

    def __init__(self, built: Built, *, say: Say = print) -> None:
        self._built = built
        self._say = say
        self.node = Node(say=say)

    def __enter__(self) -> Self:
        self._say("step 5 of 5: the node starts, and the operator in it")
        self.node.start()
        try:
            for archive in self._built.archives.values():
                self.node.load(archive)
            self.plane = self.node.plane
            self.kubeconfig = self.plane.kubeconfig()
            self.helm = Helm(self._built.helm, STATE / "helm")
        except BaseException:
            self.node.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.node.stop()

    def load_engine(self, python: Path, registry: str = "docker.io") -> str:
        """Load what stands for vLLM's image, mount points for the engine of ``python``; return its name."""
        name = objects.engine_image(python, registry)
        archive = STATE / "engine.tar"
        path = f"{python.parent}:/usr/local/bin:/usr/bin:/bin"
        oci.write(archive, name, images.engine(python), {"Env": [f"PATH={path}"]})
        self.node.load(archive)
        return name

    def install(self, values: Mapping[str, Any] | None = None, *, command: str = "install", chart: Path = CHART) -> str:
        """Install or upgrade the chart and return when the operator's pods are ready. Raises ``charts.Refused``."""
        if command == "install" and self.plane.api.find(f"/api/v1/namespaces/{NAMESPACE}") is None:
            metadata = {"name": NAMESPACE, "labels": RESTRICTED}
            self.plane.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        where = ("--namespace", NAMESPACE, "--kubeconfig", str(self.kubeconfig))
        # Without, helm takes no values for those of the release before.
        anew = ["--reset-values"] if command == "upgrade" else []
        return self.helm.run(command, NAME, str(chart), *where, *anew, "--wait", "--timeout=110s", values=values or {})

    def uninstall(self) -> str:
        """Remove the release and wait for its pods to go."""
        where = ("--namespace", NAMESPACE, "--kubeconfig", str(self.kubeconfig))
        return self.helm.run("uninstall", NAME, *where, "--wait", "--timeout", "110s")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it prints. Raises ``subprocess.CalledProcessError``."""
        command = [str(self._built.kubectl), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin or "", capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    @property
    def programs(self) -> tuple[Path, Path]:
        """The folders with kubectl and helm."""
        return self._built.kubectl.parent, self._built.helm.parent

    def collect(self, folder: Path | None = None) -> Path:
        """Write all logs and what kubectl describes to a folder, a fresh one by default; return it.

        What cannot be had, because its part is down, is said in the place of its text.
        """
        folder = folder or Path(tempfile.mkdtemp(prefix="kvserving-cluster-"))
        for log in self.node.logs():
            (folder / log.name).write_bytes(log.read_bytes())
        everywhere = "--all-namespaces"
        told: dict[str, Callable[[], str]] = {
            "events.txt": lambda: self.kubectl("get", "events", everywhere, "--sort-by=.lastTimestamp"),
            "objects.txt": lambda: self.kubectl("get", everywhere, "-o=wide", "pods,deployments,statefulsets,services"),
            "nodes.txt": lambda: self.kubectl("describe", "nodes"),
            "pods.txt": lambda: self.kubectl("describe", "pods", everywhere),
            "kvservings.yaml": lambda: self.kubectl("get", "kvservings", everywhere, "-o=yaml"),
        }
        with ThreadPoolExecutor() as pool:
            texts = pool.map(_text, told.values())
            for name, text in zip(told, texts, strict=True):
                (folder / name).write_text(text)
        for log in sorted((STATE / "logs").rglob("*.log")):
            (folder / f"{log.parent.parent.name}-{log.parent.name}-{log.name}").write_bytes(log.read_bytes())
        return folder


def exports(kubeconfig: Path, programs: Iterable[Path]) -> str:
    """Return the lines that make a shell use a cluster: its administrator's file, and folders of programs."""
    path = ":".join(map(str, programs))
    return f"export KUBECONFIG={shlex.quote(str(kubeconfig))}\nexport PATH={shlex.quote(path)}:$PATH\n"


def _text(told: Callable[[], str]) -> str:
    try:
        return told()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"not to be had: {error}\n"
