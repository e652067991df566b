"""The control plane's programs: etcd, kube-apiserver and kube-controller-manager, built once from Go modules.

``go.mod`` beside this file pins Kubernetes; the programs are kept outside the repository, in
``${XDG_CACHE_HOME:-~/.cache}/kvserving/controlplane/<hash>/``, where the hash covers ``go.mod``, ``go.sum`` and the
build flags. The first build takes about ten minutes on two cores; every later call takes milliseconds.

``KUBEBUILDER_ASSETS`` names a folder with ready programs instead. ``python -m e2e.controlplane.build`` builds and
prints the folder. ``kubectl`` is built apart, for who asks for it,
with the checksums of ``kubectl.sum`` besides.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.controlplane import commands
from tests.kept import kept

MODULE = Path(__file__).parent
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
}
KUBECTL = {"kubectl": "k8s.io/kubernetes/cmd/kubectl"}
_KUBECTL_SUMS = MODULE / "kubectl.sum"
_COMPONENT_VERSION = "k8s.io/component-base/version"
_TAIL = 30
TELL_SECONDS = 30.0
"""Between two lines about a build that goes on."""


class ProgramsMissing(Exception):
    """The programs are not in the cache and cannot be had; the message is one line with the way out."""


class BuildFailed(Exception):
    """``go build`` failed; the message ends with the compiler's last lines."""


@dataclass(frozen=True)
class Programs:
    """Paths of the programs. ``controller_manager`` is ``None`` when a given folder does not have it."""

    etcd: Path
    apiserver: Path
    controller_manager: Path | None


Say = Callable[[str], None]
Compile = Callable[[str, str, Path, str], None]
"""Build one program: (name, Go package, output file, linker flags); raise ``BuildFailed``."""


def programs(
    environ: Mapping[str, str] = os.environ, *, say: Say | None = None, compile_one: Compile | None = None
) -> Programs:
    """Return the programs, building those that the cache lacks.

    Two callers at once build once: the second waits for the first. A build that is interrupted leaves nothing that
    a later call would take for complete. Raises ``ProgramsMissing`` or ``BuildFailed``.
    """
    say = say or _say
    given = environ.get("KUBEBUILDER_ASSETS")
    if given:
        return _given(Path(given))
    folder = cache_folder(environ)
    if not folder.is_dir():
        if compile_one is None:
            if shutil.which("go", path=environ.get("PATH")) is None:
                raise ProgramsMissing(
                    "the control plane needs Go to build it once: install Go "
                    f"{go_version()} or newer, or name a folder with {', '.join(PACKAGES)} in KUBEBUILDER_ASSETS"
                )
            compile_one = go_build
        build_into(folder, PACKAGES, say, compile_one)
    return Programs(folder / "etcd", folder / "kube-apiserver", folder / "kube-controller-manager")


def kubectl(
    environ: Mapping[str, str] = os.environ, *, say: Say | None = None, compile_one: Compile | None = None
) -> Path:
    """Return kubectl of the control plane's version, built on the first call (2 minutes); without Go, that of PATH.

    Raises ``ProgramsMissing`` where there is neither, or ``BuildFailed``.
    """
    folder = cache_folder(environ, KUBECTL)
    if not folder.is_dir():
        if compile_one is None:
            path = environ.get("PATH")
            if shutil.which("go", path=path) is None:
                if found := shutil.which("kubectl", path=path):
                    return Path(found)
                raise ProgramsMissing(f"no kubectl: install Go {go_version()} or newer to build it, or kubectl itself")
            compile_one = _go_build_kubectl
        build_into(folder, KUBECTL, say or _say, compile_one)
    return folder / "kubectl"


def cache_folder(environ: Mapping[str, str] = os.environ, packages: Mapping[str, str] = PACKAGES) -> Path:
    """Return where the programs of this ``go.mod`` are or will be."""
    key = hashlib.sha256()
    sums = (MODULE / "go.sum").read_bytes()
    if packages is KUBECTL:
        sums += _KUBECTL_SUMS.read_bytes()
    for part in (
        (MODULE / "go.mod").read_bytes(),
        sums,
        repr((linker_flags(), sorted(packages.items()), platform.system(), platform.machine())).encode(),
    ):
        key.update(hashlib.sha256(part).digest())
    return kept(environ) / "controlplane" / key.hexdigest()[:20]


def linker_flags() -> str:
    """Return the linker flags: without the version stamps the apiserver reports v0.0.0 and clients misjudge it."""
    version = _pinned(r"^\s+k8s\.io/kubernetes v(\S+)")
    major, minor, _ = version.split(".", 2)
    return (
        f"-s -w -X {_COMPONENT_VERSION}.gitVersion=v{version} "
        f"-X {_COMPONENT_VERSION}.gitMajor={major} -X {_COMPONENT_VERSION}.gitMinor={minor}"
    )


def _given(folder: Path) -> Programs:
    for name in ("etcd", "kube-apiserver"):
        if not os.access(folder / name, os.X_OK):
            raise ProgramsMissing(
                f"KUBEBUILDER_ASSETS={folder}: no program {name} there: add it, or unset the variable to build it"
            )
    manager = folder / "kube-controller-manager"
    return Programs(folder / "etcd", folder / "kube-apiserver", manager if os.access(manager, os.X_OK) else None)


def build_into(
    folder: Path,
    packages: Mapping[str, str],
    say: Say,
    compile_one: Compile,
    *,
    what: str = "control plane",
    flags: str | None = None,
) -> None:
    """Build ``packages`` into ``folder``, which appears when all are there; a second caller waits for the first.

    ``flags`` are the linker's, the control plane's by default.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / "lock", say, what):
        if folder.is_dir():
            return
        for stale in folder.parent.glob("*.building"):
            shutil.rmtree(stale)
        work = folder.with_suffix(".building")
        work.mkdir()
        minutes = "10 minutes" if len(packages) > 1 else "2 minutes"
        say(f"{what}: building {', '.join(packages)} (once; about {minutes} on two idle cores, longer on busy ones)")
        try:
            for number, (name, package) in enumerate(packages.items(), 1):
                say(f"{what}: {name} ({number} of {len(packages)}) ...")
                started = time.monotonic()
                with telling(say, f"{what}: {name}"):
                    compile_one(name, package, work / name, linker_flags() if flags is None else flags)
                say(f"{what}: {name} built in {time.monotonic() - started:.0f} s")
            work.rename(folder)
        except BaseException:
            shutil.rmtree(work)
            raise


def _go_build_kubectl(name: str, package: str, output: Path, flags: str) -> None:
    """Build with ``go.sum`` and ``kubectl.sum`` as one; longer sums in ``go.sum`` would rebuild the control plane."""
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "go.mod")
        module.write_bytes((MODULE / "go.mod").read_bytes())
        module.with_suffix(".sum").write_bytes((MODULE / "go.sum").read_bytes() + _KUBECTL_SUMS.read_bytes())
        go_build(name, package, output, flags, f"-modfile={module}")


def go_build(name: str, package: str, output: Path, flags: str, *more: str, module: Path | None = None) -> None:
    """Build one program in the folder of ``module``, the control plane's by default. Raises ``BuildFailed``."""
    command = ["go", "build", *more, "-trimpath", "-ldflags", flags, "-o", str(output), package]
    # Go leaves its folders behind where it is broken off.
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "CGO_ENABLED": "0", "GOTMPDIR": folder}
        done = commands.run(command, cwd=module or MODULE, env=env, merged=True)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_TAIL:])
        raise BuildFailed(f"go build of {name} ended with {done.returncode}:\n{tail}")


@contextmanager
def telling(say: Say, about: str) -> Iterator[None]:
    """While the block runs, say every ``TELL_SECONDS`` for how long it has; ``say`` is called by another thread."""
    started, over = time.monotonic(), threading.Event()

    def tell() -> None:
        while not over.wait(TELL_SECONDS):
            say(f"{about}: {time.monotonic() - started:.0f} s so far")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _lock(path: Path, say: Say, what: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{what}: another process is building it; waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def go_version() -> str:
    """Return the Go that ``go.mod`` asks for at least."""
    return _pinned(r"^go (\S+)")


def _pinned(pattern: str) -> str:
    found = re.search(pattern, (MODULE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BuildFailed(f"go.mod has no line like {pattern!r}")
    return found[1]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        print(programs().etcd.parent)
    except (ProgramsMissing, BuildFailed) as error:
        sys.exit(str(error))
