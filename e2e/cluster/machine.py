"""What the lane changes on the machine that runs it, and how every trace of it goes away again.

``prepare`` notes what was there before, ``left`` names what is still there of ours, ``clean`` removes it. ``clean``
asks nobody who may have died: it goes by our own folders, control group, bridges and chains.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from e2e.cluster import cgroups
from e2e.cluster.layout import ADDRESS, BRIDGE, CGROUP, CONTAINERD, ENVIRONMENT, LOCK, POD_BRIDGE, RUN, STATE
from e2e.cluster.packages import program

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_BRIDGED = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_BEFORE = RUN / "before.json"
# Folders that programs make without being asked where.
_BY_THE_WAY = ("/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers", "/etc/cni", "/run/xtables")
_TABLES = ("filter", "nat", "mangle")
_FAMILIES = ("iptables", "ip6tables")


class NotFit(Exception):
    """This machine cannot be made a node; the message says why and the way out."""


def fit() -> None:
    """Return where this machine can be a node. Raises ``NotFit``, which says why it cannot."""
    as_root()
    if (pid := holder()) is not None:
        raise NotFit(_taken(pid))
    if not _BEFORE.exists() and (foreign := [name for family, table in _tables() for name in chains(family, table)]):
        raise NotFit(f"this machine is a node of another cluster already: iptables has the chain {foreign[0]}")
    if not _BRIDGED.exists():
        raise NotFit(
            "bridged packets do not reach iptables here, and Services would not answer: `modprobe br_netfilter`"
        )
    if _BRIDGED.read_text().strip() != "1":
        raise NotFit(f"Services would not answer pods of one bridge: write 1 to {_BRIDGED}")


def as_root() -> None:
    """Return where this process may change the machine. Raises ``NotFit``."""
    if os.geteuid() != 0:
        raise NotFit("the cluster lane needs root: it makes a bridge, mounts and containers")


def claim() -> IO[str]:
    """Make this process the one that runs the lane, until it gives the file to ``release``. Raises ``NotFit``."""
    file = LOCK.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise NotFit(_taken(holder())) from None
    if not LOCK.exists() or not os.path.samestat(os.fstat(file.fileno()), LOCK.stat()):
        # Who held it has just released it, and removed the file with it.
        file.close()
        return claim()
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def release(file: IO[str]) -> None:
    """Give the machine back that ``claim`` took."""
    LOCK.unlink()
    file.close()


def holder() -> int | None:
    """Return the process that runs the lane, ``None`` where there is none."""
    try:
        with LOCK.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return int(LOCK.read_text())
    return None


def end_holder(timeout: float = 120) -> None:
    """Ask the process that runs the lane to end, and return when it has. Raises ``TimeoutError``."""
    pid = holder()
    if pid is None:
        return
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        ended, _, _ = select.select([handle], [], [], timeout)
        if not ended:
            raise TimeoutError(f"process {pid}, which runs the lane, does not end")
    finally:
        os.close(handle)


def prepare() -> None:
    """Make folders, the control group and the node's bridge, for who has claimed the machine.

    What a lane left whose process was killed is removed first.
    """
    clean()
    for folder in (RUN, STATE):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = {
        "forward": _FORWARD.read_text().strip(),
        "folders": [name for name in _BY_THE_WAY if Path(name).exists()],
    }
    _BEFORE.write_text(json.dumps(before))
    # Ten thousands of small files that live for minutes: on a disk they take a minute to be written, and to be removed.
    (STATE / "containerd").mkdir()
    run("mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", str(STATE / "containerd"))
    cgroups.create()
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{ADDRESS}/32", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    _FORWARD.write_text("1")


def clean() -> None:
    """Remove every trace of the lane; do nothing where there is none."""
    cgroups.end()
    for pid in _shims():
        os.kill(pid, signal.SIGKILL)
    for mount in _mounts():
        run("umount", "--lazy", mount)
    for bridge in _bridges():
        run("ip", "link", "delete", bridge)
    cgroups.remove()
    before = json.loads(_BEFORE.read_text()) if _BEFORE.exists() else None
    if before is not None:
        # Chains bear no owner: they are ours where there were none before.
        for family, table in _tables():
            _remove_chains(family, table)
        _FORWARD.write_text(before["forward"])
        for name in set(_BY_THE_WAY) - set(before["folders"]):
            shutil.rmtree(name, ignore_errors=True)
    shutil.rmtree(STATE, ignore_errors=True)
    shutil.rmtree(RUN, ignore_errors=True)


def left() -> list[str]:
    """Return what is on the machine of the lane, in words; nothing after ``clean``."""
    found = [f"process {pid} of a pod" for pid in cgroups.processes()]
    found += [f"process {pid}, a shim of containerd" for pid in _shims()]
    found += [f"mount {mount}" for mount in _mounts()]
    found += [f"bridge {bridge}" for bridge in _bridges()]
    found += [f"chain {chain} of {family} {table}" for family, table in _tables() for chain in chains(family, table)]
    found += [f"control group {path}" for path in (h / CGROUP for h in cgroups.hierarchies()) if path.exists()]
    found += [f"folder {folder}" for folder in (RUN, STATE) if folder.exists()]
    return found


def chains(family: str, table: str) -> list[str]:
    """Return the chains of a table that a kube-proxy or a kubelet made."""
    return re.findall(r"^:(KUBE-\S+)", _saved(family, table), re.MULTILINE)


def run(*command: str, stdin: str | None = None) -> str:
    """Run a program of the system and return what it prints. Raises ``RuntimeError`` with its last words."""
    name, *arguments = command
    done = subprocess.run(
        [program(name) or name, *arguments], input=stdin or "", capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stdout


def _taken(pid: int | None) -> str:
    ways = "`python -m e2e.cluster down` first"
    if ENVIRONMENT.exists():
        ways = f"`. {ENVIRONMENT}` makes a shell use it, `python -m e2e.cluster down` ends it"
    return f"process {pid} runs a lane on this machine: {ways}"


def _shims() -> list[int]:
    """Processes that containerd leaves behind with each pod; they name its socket."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"containerd-shim" in words[0] and str(CONTAINERD).encode() in words:
            found.append(int(folder.name))
    return found


def _mounts() -> list[str]:
    """Mounts below our folders, the last one first."""
    places = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    # Octal escapes stand for spaces and the like.
    plain = [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), place) for place in places]
    return [place for place in reversed(plain) if any(Path(place).is_relative_to(top) for top in (RUN, STATE))]


def _bridges() -> list[str]:
    return [name for name in (BRIDGE, POD_BRIDGE) if Path("/sys/class/net", name).exists()]


def _tables() -> Iterable[tuple[str, str]]:
    return ((family, table) for family in _FAMILIES for table in _TABLES)


def _saved(family: str, table: str) -> str:
    if program(f"{family}-save") is None:
        return ""
    return run(f"{family}-save", "-t", table)


def _remove_chains(family: str, table: str) -> None:
    """Delete the chains and every rule that leads to one, in one step."""
    found = chains(family, table)
    if not found:
        return
    rules = [line for line in _saved(family, table).splitlines() if line.startswith("-A ")]
    leading = [rule for rule in rules if not rule.startswith("-A KUBE-") and re.search(r"-[jg] KUBE-", rule)]
    lines = [f"*{table}", *(f":{chain} - [0:0]" for chain in found)]
    lines += [re.sub("^-A", "-D", rule) for rule in leading]
    lines += [f"-X {chain}" for chain in found]
    run(f"{family}-restore", "--noflush", stdin="\n".join([*lines, "COMMIT", ""]))
