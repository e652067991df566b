"""What this machine lacks for ``kvserving up``, or for engines at all."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from ...amounts import size
from ...listing import some
from ...memory import SHM_MARGIN_BYTES
from ..facts_machine import MachineFacts
from ..findings import Finding, error, info, warning
from . import devices, environment

GIB = 2**30
_PAIR_OF_CPU_ENGINES = 8 * GIB
_LEAST_DISK = 2 * GIB
_LEAST_FILES = 4096
_LEAST_TASKS = 512
"""A pair of CPU engines with router and supervisor has about 250 on two cores, and more where there are more."""
_CORES_OF_A_PAIR = 2
_STRICT = 2
"""The mode of overcommit in which reservations count."""
_MOST_NAMES = 6
_SOME_NAMES = 3
_EXPANDABLE = re.compile(r"expandable_segments *: *[Tt]rue")
_SHM = "/dev/shm"  # noqa: S108 - where shared memory lies on Linux


def findings(facts: MachineFacts) -> Iterator[Finding]:
    """Findings about this machine."""
    if facts.system != "Linux":
        yield error(
            "not-linux",
            "this machine",
            f"it runs {facts.system}",
            why="`kvserving up` runs services as processes of Linux alone",
            fix="validate, render, doctor FILE and everything against a cluster work here",
        )
        return
    yield from environment.findings(facts)
    yield from _memory(facts)
    yield from _limits(facts)
    yield from devices.findings(facts)
    yield from _services(facts)
    yield from _rest(facts)


def _memory(facts: MachineFacts) -> Iterator[Finding]:
    if facts.memory is not None and facts.memory < _PAIR_OF_CPU_ENGINES and not facts.devices:
        yield warning(
            "memory-small",
            "memory",
            f"{size(facts.memory)} are available; one prefill, one decode and a router need about 8Gi",
            why="`kvserving up` refuses to start more than fits",
            fix="end other programs, or raise the container's memory limit",
        )
    if facts.shm_size is not None and facts.shm_size < SHM_MARGIN_BYTES:
        yield error(
            "shm-small",
            _SHM,
            f"it holds {size(facts.shm_size)}; engines need {size(SHM_MARGIN_BYTES)}, and L1 on top",
            why="engines end at start or with SIGBUS",
            fix="in a container: --shm-size or --ipc=host; else `mount -o remount,size=…` of it",
        )
    elif facts.shm_free is not None and facts.shm_free < SHM_MARGIN_BYTES:
        yield error(
            "shm-full",
            _SHM,
            f"{size(facts.shm_free)} of {size(facts.shm_size or 0)} are free; engines need {size(SHM_MARGIN_BYTES)}, "
            "and L1 on top",
            why="engines end at start or with SIGBUS",
            fix=f"`ls -lS {_SHM}` shows what lies there: remove it, or end what uses it",
        )
    if facts.stale:
        held = sum(facts.stale.values())
        found = warning(
            "shm-leftovers",
            _SHM,
            f"{len(facts.stale)} files of ended engines hold {size(held)}, and no process of yours uses them",
            why="they take memory until the machine restarts",
            fix="unless engines of other users or containers use them, remove exactly these: "
            f"`{_removal(facts.stale)}`",
        )
        yield replace(found, brief=_in_brief(facts.stale))
    if facts.disk_free is not None and facts.disk_free < facts.disk_needed:
        yield error(
            "disk-small",
            "the folder of all services",
            f"{facts.disk_free >> 20}Mi are free; the logs of one prefill, one decode and a router may take "
            f"{facts.disk_needed >> 20}Mi",
            why="`kvserving up` refuses to start what has no room for its logs",
            fix="free some, or name another folder by KVSERVING_STATE_DIR",
        )
    elif facts.disk_free is not None and facts.disk_free < _LEAST_DISK:
        yield warning(
            "disk-small",
            "the folder of all services",
            f"{size(facts.disk_free)} are free",
            why="logs and filesystem stores end when it is full",
            fix="free some, or name another folder by KVSERVING_STATE_DIR",
        )


def _in_brief(paths: Iterable[str]) -> str:
    """Where the command for many files stands; empty where it is short enough to be read."""
    names = sorted(PurePosixPath(path).name for path in paths)
    if len(names) <= _MOST_NAMES:
        return ""
    return (
        f"unless engines of other users or containers use them, remove exactly these ({some(names, _SOME_NAMES)}): "
        "`kvserving doctor -o json` has the whole command, as the fix of shm-leftovers"
    )


def _removal(paths: Iterable[str]) -> str:
    """The command that removes the files of one folder, without a space between their names, at which a line breaks."""
    first, *others = sorted(paths)
    if not others:
        return f"rm -f {shlex.quote(first)}"
    folder = PurePosixPath(first).parent
    names = (shlex.quote(PurePosixPath(path).name) for path in (first, *others))
    return f"rm -f {folder}/{{{','.join(names)}}}"


def _limits(facts: MachineFacts) -> Iterator[Finding]:
    limits = facts.limits
    if facts.cpus < _CORES_OF_A_PAIR and not facts.devices:
        yield warning(
            "few-cores",
            "cores",
            f"{facts.cpus} can be used",
            why="prefill and decode are bound to the same one, and each start and request takes twice as long",
            fix="give the container or virtual machine two or more, or leave out the prefill section",
        )
    if limits.open_files < _LEAST_FILES:
        yield warning(
            "open-files",
            "ulimit -n",
            f"a process may open {limits.open_files} files",
            why="a router with a thousand streams fails",
            fix="`ulimit -n 65536`",
        )
    if limits.tasks is not None and limits.tasks < _LEAST_TASKS:
        yield warning(
            "few-tasks",
            "ulimit -u",
            f"{limits.tasks} processes and threads may run, those of other programs included",
            why="an engine has about a hundred, and ends when it may start no more",
            fix="`ulimit -u 4096`, in a container --pids-limit 4096",
        )
    if limits.overcommit == _STRICT:
        yield warning(
            "overcommit",
            "vm.overcommit_memory",
            "it is 2: the kernel counts memory that is reserved as used",
            why="CUDA and PyTorch reserve many times what they use, and engines end with out of memory at start",
            fix="`sysctl vm.overcommit_memory=0`",
        )


def _services(facts: MachineFacts) -> Iterator[Finding]:
    if facts.state_problem:
        yield error(
            "state-folder",
            "the folder of all services",
            facts.state_problem,
            why="`kvserving up` keeps state, keys and logs there",
            fix="let this user write to it, or name another one by KVSERVING_STATE_DIR",
        )
    for name in facts.lost:
        yield warning(
            "service-lost",
            name,
            "its supervisor has gone without ending it",
            why="its engines may still hold memory, GPUs and addresses",
            fix=f"`kvserving down {name}` ends what is left",
        )
    for name, reason in facts.damaged.items():
        yield warning(
            "state-damaged",
            name,
            f"its state.json {reason}",
            why="no command knows its processes, and they may hold memory, GPUs and addresses",
            fix=f"a supervisor that runs writes a new one within seconds; else end what `ps` shows of it, and "
            f"`kvserving status {name}` puts the file aside as state.json.damaged",
        )
    for address in facts.busy:
        port = address.rpartition(":")[2]
        router = address.startswith("127.0.0.1:")
        yield warning(
            "port-busy",
            address,
            "a program that is no service of yours listens there",
            why="it is the router's address unless `up` is told another"
            if router
            else "engines listen on this port, each on an address of its own, unless the object names another",
            fix=f"`ss -ltnp 'sport = :{port}'` names the program; "
            + ("`kvserving up FILE --listen 127.0.0.1:8001`" if router else 'spec.engine.args: ["--port=18000"]'),
        )


def _rest(facts: MachineFacts) -> Iterator[Finding]:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if _EXPANDABLE.search(facts.variables.get(name, "")):
            yield error(
                "expandable-segments",
                name,
                "expandable_segments is on in this shell, and engines inherit it",
                why="vLLM refuses it together with any connector, and ends",
                fix=f"`unset {name}`",
            )
    if not facts.loopback:
        yield error(
            "loopback",
            "127.0.0.0/8",
            "addresses beside 127.0.0.1 cannot be bound",
            why="each pod of `kvserving up` has one of its own",
            fix="bring up the loopback device (`ip link set lo up`) in this network namespace",
        )
    if facts.store is None:
        yield info(
            "no-store",
            "PATH",
            "there is no valkey-server or redis-server",
            why="spec.cache.l2 with a size needs one here",
            fix="install Valkey or Redis, or use spec.cache.l2.type: filesystem",
        )
    for address, problem in facts.reach.items():
        if problem:
            yield warning(
                "unreachable",
                address,
                problem,
                why="models of hf:// can be taken from this machine's cache alone",
                fix="check network and proxy, name a mirror by HF_ENDPOINT, or use file://",
            )
