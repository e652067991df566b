"""The Debian packages that the lane's node and images need; what lacks is named, or installed where that is wished."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

CNI = Path("/usr/lib/cni")
INSTALL = "KVSERVING_CLUSTER_INSTALL"
_PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables-restore": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "openssl": "openssl",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
}
_PLUGINS = ("bridge", "host-local", "loopback")
_SYSTEM_PATH = "/usr/sbin:/sbin"

Install = Callable[[list[str]], None]


class PackagesMissing(Exception):
    """The machine lacks packages; the message names them and the way out."""


def program(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of a program, also one for administrators, or ``None``."""
    return shutil.which(name, path=f"{environ.get('PATH', os.defpath)}:{_SYSTEM_PATH}")


def missing(find: Callable[[str], str | None] = program, cni: Path = CNI) -> list[str]:
    """Return the names of the packages that lack."""
    found = {package for name, package in _PROGRAMS.items() if find(name) is None}
    if not all((cni / plugin).is_file() for plugin in _PLUGINS):
        found.add("containernetworking-plugins")
    return sorted(found)


def require(
    environ: Mapping[str, str] = os.environ,
    *,
    find: Callable[[], list[str]] = missing,
    install: Install | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Return when nothing lacks; with ``KVSERVING_CLUSTER_INSTALL=1`` or in CI the rest is installed by apt-get.

    Raises ``PackagesMissing``.
    """
    lacking = find()
    if not lacking:
        return
    command = f"apt-get install --no-install-recommends {' '.join(lacking)}"
    if environ.get(INSTALL) != "1" and not environ.get("CI"):
        raise PackagesMissing(f"the cluster lane lacks {', '.join(lacking)}: `{command}`, or set {INSTALL}=1")
    say(f"cluster: {command}")
    (install or _install)(lacking)
    if left := find():
        raise PackagesMissing(f"apt-get installed {', '.join(lacking)}, and still these lack: {', '.join(left)}")


def _install(names: list[str]) -> None:
    apt = program("apt-get")
    if apt is None:
        raise PackagesMissing(f"no apt-get here: install what Debian calls {', '.join(names)}")
    # A package's own services are not ours: policy-rc.d keeps apt from starting them.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *names]):
            done = subprocess.run(
                [apt, *arguments], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
            )
            if done.returncode:
                tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
                raise PackagesMissing(f"apt-get {arguments[0]} ended with {done.returncode}:\n{tail}")
    finally:
        if ours:
            policy.unlink()
