"""The lane's images: ours, from their Dockerfiles by buildah, and stand-ins for those that a registry would give.

No registry is asked. The base that the Dockerfiles name is made by debootstrap, once; buildah keeps its layers in the
cache, so that a second build takes seconds. Packages come from where this machine's apt and pip take theirs.
"""

from __future__ import annotations

import configparser
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from e2e.cluster import build, oci
from e2e.cluster.packages import program
from e2e.controlplane import commands
from e2e.controlplane.build import Say, telling
from scripts.release import versions

from kvserving_operator import __version__

ROOT = Path(__file__).parents[2]
BASE = "docker.io/library/debian:trixie-slim"
_SUITE = "trixie"
_STAND_INS = Path(__file__).parent / "images"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_IN_BUILD = "/run/kvserving-build"


class ImageFailed(Exception):
    """An image could not be built; the message ends with the last lines of the build."""


@dataclass(frozen=True)
class Image:
    """An image that the lane builds: its full name, its Dockerfile, and the build arguments."""

    name: str
    dockerfile: Path
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """What stands behind the name's last colon."""
        return self.name.rpartition(":")[2]


OPERATOR = Image(f"docker.io/kvserving/operator:{__version__}", ROOT / "images/operator/Dockerfile")
CONNECTOR = Image(f"docker.io/kvserving/connector:{__version__}", ROOT / "images/connector/Dockerfile")
ROUTER = Image("docker.io/lightseekorg/smg:1.13.0", _STAND_INS / "router/Dockerfile")
STORE = Image("docker.io/valkey/valkey:8.1", _STAND_INS / "valkey/Dockerfile")
_NEXT_VERSION = versions.next_minor(__version__)
NEXT = Image(
    f"docker.io/kvserving/operator:{_NEXT_VERSION}",
    _STAND_INS / "next/Dockerfile",
    {"OPERATOR": OPERATOR.name, "VERSION": _NEXT_VERSION},
)
NEXT_CONNECTOR = Image(
    f"docker.io/kvserving/connector:{_NEXT_VERSION}",
    _STAND_INS / "next-connector/Dockerfile",
    {"CONNECTOR": CONNECTOR.name, "VERSION": _NEXT_VERSION},
)
NEXT_PROTOCOL = Image(
    f"docker.io/kvserving/operator:{_NEXT_VERSION}-protocol",
    _STAND_INS / "next/Dockerfile",
    {**NEXT.arguments, "PROTOCOL": "2"},
)
ALL = (OPERATOR, CONNECTOR, ROUTER, STORE)
"""What every cluster has."""
NEWER = (NEXT, NEXT_CONNECTOR, NEXT_PROTOCOL)
"""What only tests of upgrades need. They are built on the first two: those come before."""


class Builder:
    """Builds images in a storage of its own, which outlives the lane."""

    def __init__(self, environ: Mapping[str, str] = os.environ, *, say: Say = print) -> None:
        self._cache = build.cache(environ)
        self._say = say

    def archive(self, image: Image) -> Path:
        """Return the image as an OCI archive, built from what its Dockerfile and its context are now."""
        started = time.monotonic()
        with telling(self._say, f"cluster: {image.name}"):
            archive = self._archive(image)
        self._say(f"cluster: {image.name} in {time.monotonic() - started:.0f} s")
        return archive

    def _archive(self, image: Image) -> Path:
        self._base()
        self._bud(image, ROOT, "--pull-never", "--layers", f"--tag={image.name}")
        number = self._buildah("images", "--quiet", "--no-trunc", image.name).split()[0].partition(":")[2]
        short = image.name.rpartition("/")[2].replace(":", "-")
        archive = self._cache / "archives" / f"{short}-{number}.tar"
        if not archive.exists():
            archive.parent.mkdir(parents=True, exist_ok=True)
            for older in archive.parent.glob(f"{short}-*"):
                older.unlink()
            fresh = archive.with_suffix(".writing")
            try:
                self._buildah("push", "--quiet", image.name, f"oci-archive:{fresh}:{image.name}")
                fresh.rename(archive)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
        return archive

    def rebuild(self, image: Image, context: Path, epoch: int, archive: Path) -> None:
        """Build the image from ``context``, a checkout, and write it as an OCI archive.

        No layer of an earlier build is used, and every time in it is ``epoch``. The storage keeps nothing of it.
        """
        if "BASE" in image.arguments:
            pull = "--pull=false"
        else:
            self._base()
            pull = "--pull-never"
        here = replace(image, dockerfile=context / image.dockerfile.relative_to(ROOT))
        times = (f"--timestamp={epoch}", f"--build-arg=SOURCE_DATE_EPOCH={epoch}")
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder, "number")
            self._bud(here, context, pull, "--no-cache", *times, f"--iidfile={told}")
            number = told.read_text().strip()
            self._buildah("push", "--quiet", number, f"oci-archive:{archive}:{image.name}")
        self._buildah("rmi", number)

    def _bud(self, image: Image, context: Path, *options: str) -> None:
        with _settings_of_pip() as settings, self._no_container_left():
            self._buildah(
                *("bud", "--network=host", *options),
                *(f"--volume={settings}:{_IN_BUILD}:ro", f"--volume={settings}/pip.conf:/etc/pip.conf:ro"),
                *(f"--build-arg={name}={value}" for name, value in image.arguments.items()),
                *(f"--file={image.dockerfile}", str(context)),
            )

    @contextmanager
    def _no_container_left(self) -> Iterator[None]:
        """Remove what the block made to build in, with its mounts, where it was broken off."""
        before = self._containers()
        try:
            yield
        except BaseException:
            if made := self._containers() - before:
                self._buildah("rm", *made)
            raise

    def _containers(self) -> set[str]:
        return set(self._buildah("containers", "--quiet", "--notruncate").split())

    def _base(self) -> None:
        """Make the base image unless the storage has it."""
        if self._buildah("images", "--quiet", "--filter", f"reference={BASE}").strip():
            return
        self._say(f"cluster: {BASE} by debootstrap (once; two minutes)")
        with tempfile.TemporaryDirectory(dir=self._cache) as folder:
            root = Path(folder, "root")
            self._run("debootstrap", "--variant=minbase", _SUITE, str(root))
            shutil.rmtree(root / "var/cache/apt/archives")
            working = self._buildah("from", "scratch").strip()
            try:
                self._buildah("add", "--quiet", working, str(root), "/")
                self._buildah("config", "--cmd", "bash", working)
                self._buildah("commit", "--quiet", working, BASE)
            finally:
                self._buildah("rm", working)

    def _buildah(self, *arguments: str) -> str:
        storage = [f"--root={self._cache}/storage", f"--runroot={self._cache}/storage-run"]
        return self._run("buildah", *storage, *arguments)

    def _run(self, name: str, *arguments: str) -> str:
        self._cache.mkdir(parents=True, exist_ok=True)
        # crun and runc want control groups that a machine may not give to builds.
        env = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        done = commands.run([program(name) or name, *arguments], env=env)
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
            raise ImageFailed(f"{name} {' '.join(arguments[:6])} ended with {done.returncode}:\n{tail}")
        return done.stdout


def engine(python: Path) -> oci.Content:
    """Return an image that holds mount points alone, for the engine that ``python`` has; see ``mounted``."""
    folders = ["/etc/ssl", "/proc", "/sys", "/dev", "/run", "/tmp", "/usr", "/var", *map(str, mounted(python))]
    links = {f"/{name}": f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")}
    return oci.Content(folders=folders, links=links)


def mounted(python: Path) -> Sequence[Path]:
    """Return the folders of this machine that an engine's pod needs: the environment of ``python``, and its Python."""
    environment = python.parent.parent
    own = Path(os.path.realpath(python)).parent.parent
    return [folder for folder in (environment, own) if not folder.is_relative_to("/usr")]


@contextmanager
def _settings_of_pip() -> Iterator[Path]:
    """A folder with this machine's certificates and pip settings; a fresh base has neither."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        told = configparser.ConfigParser(interpolation=None)
        told.read([Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf"])
        if not told.has_section("global"):
            told.add_section("global")
        if os.path.exists(_CERTIFICATES):
            shutil.copy(_CERTIFICATES, Path(folder, "ca.crt"))
            told["global"]["cert"] = f"{_IN_BUILD}/ca.crt"
        with Path(folder, "pip.conf").open("w") as file:
            told.write(file)
        yield Path(folder)
