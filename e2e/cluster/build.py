"""The node's programs: kubelet, kube-proxy, kube-scheduler, CoreDNS and pause, built once from pinned Go modules.

Kubernetes is the one that ``e2e/controlplane/go.mod`` pins; ``programs/node.sum`` has the checksums that only these
programs need. CoreDNS has a module of its own, because its pins are others. All are kept in
``${XDG_CACHE_HOME:-~/.cache}/kvserving/cluster/``, in folders named by a hash of what they are built from.
``python -m e2e.cluster.build`` builds and prints the folders.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.controlplane import build
from e2e.controlplane.build import BuildFailed, ProgramsMissing, Say, build_into, go_build
from tests.kept import kept

SOURCES = Path(__file__).parent / "programs"
KUBERNETES = {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kubelet", "kube-proxy", "kube-scheduler")}
_FLAGS = "-s -w"


@dataclass(frozen=True)
class NodePrograms:
    """Paths of the programs that make a machine a node."""

    kubelet: Path
    proxy: Path
    scheduler: Path
    dns: Path
    pause: Path


def cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that outlives the lane: programs, the base image, the storage of image builds."""
    return kept(environ) / "cluster"


def programs(environ: Mapping[str, str] = os.environ, *, say: Say | None = None) -> NodePrograms:
    """Return the programs, building those that the cache lacks. Raises ``ProgramsMissing`` or ``BuildFailed``."""
    say = say or _say
    node, dns, pause = (_folder(environ, name) for name in ("node", "coredns", "pause"))
    if (
        not all(folder.is_dir() for folder in (node, dns, pause))
        and shutil.which("go", path=environ.get("PATH")) is None
    ):
        raise ProgramsMissing(
            f"the cluster lane needs Go to build its node once: install Go {build.go_version()} or newer; "
            "`go` is not in PATH"
        )
    if not node.is_dir():
        build_into(node, KUBERNETES, say, _kubernetes, what="node")
    for folder, name in ((dns, "coredns"), (pause, "pause")):
        if not folder.is_dir():
            build_into(folder, {name: "."}, say, _own, what="node", flags=_FLAGS)
    return NodePrograms(
        kubelet=node / "kubelet",
        proxy=node / "kube-proxy",
        scheduler=node / "kube-scheduler",
        dns=dns / "coredns",
        pause=pause / "pause",
    )


def _folder(environ: Mapping[str, str], name: str) -> Path:
    if name == "node":
        files = [build.MODULE / "go.mod", build.MODULE / "go.sum", SOURCES / "node.sum"]
        settings = repr((build.linker_flags(), sorted(KUBERNETES.items())))
    else:
        files = sorted(file for file in (SOURCES / name).iterdir() if file.is_file())
        settings = _FLAGS
    key = hashlib.sha256(repr((settings, platform.system(), platform.machine())).encode())
    for file in files:
        key.update(hashlib.sha256(file.read_bytes()).digest())
    return cache(environ) / f"{name}-{key.hexdigest()[:20]}"


def _kubernetes(name: str, package: str, output: Path, flags: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "go.mod")
        module.write_bytes((build.MODULE / "go.mod").read_bytes())
        sums = (build.MODULE / "go.sum").read_bytes() + (SOURCES / "node.sum").read_bytes()
        module.with_suffix(".sum").write_bytes(sums)
        go_build(name, package, output, flags, f"-modfile={module}")


def _own(name: str, package: str, output: Path, flags: str) -> None:
    go_build(name, package, output, flags, module=SOURCES / name)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        for program in vars(programs()).values():
            print(program)
    except (ProgramsMissing, BuildFailed) as error:
        sys.exit(str(error))
