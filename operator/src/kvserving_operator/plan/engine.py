"""The engine container: arguments, environment, probes, resources."""

from __future__ import annotations

from typing import Any

from ..amounts import quantity
from ..api.v1alpha1 import RoleName
from ..connectors import render, transfer_config
from ..engines import arguments
from ..memory import host_memory, ranks_per_pod
from ..profile import state_settings
from . import ports, sources, storage
from .context import Context
from .objects import literal

CONNECTOR_PATH = "/opt/kvserving"
KEYS_PATH = "/etc/kvserving/keys"
HOME_PATH = "/home/kvserving"
ROUTER_REACTION_SECONDS = 3
STOP_MARGIN_SECONDS = 10
DEAD_GRACE_SECONDS = 10
_WITHOUT_API = ("vllm.entrypoints.cli.main", "serve")

# CUDA transports must be listed, or UCX does not recognise device memory.
UCX_RDMA = "rc,sm,self,cuda_copy,cuda_ipc"
UCX_PLAIN = "tcp,sm,self,cuda_copy,cuda_ipc"
UCX_CPU_POD = "tcp,self"
UCX_CPU_LOCAL = "tcp,shm,self"


def uses_rdma(ctx: Context) -> bool:
    """Whether the engines get an RDMA device: never without a second role to transfer to."""
    rdma = ctx.spec.transfer.rdma
    asked = rdma.resource is not None or rdma.claim_template is not None
    return ctx.disaggregated and not ctx.site.local and rdma.mode != "disabled" and asked


def lease_seconds(ctx: Context, role: RoleName) -> int:
    """Seconds for which a role may still hold KV of its last request."""
    return ctx.spec.transfer.lease.seconds if role == "prefill" else 0


def grace_seconds(ctx: Context, role: RoleName) -> int:
    """Time from the stop signal to the end: router reaction, drain, leases and a margin."""
    drain = ctx.role(role).drain_timeout.seconds
    return ROUTER_REACTION_SECONDS + drain + lease_seconds(ctx, role) + STOP_MARGIN_SECONDS


def drain_command(ctx: Context, role: RoleName, *, worker: bool = False) -> list[str]:
    """What a pod runs before its engine gets the stop signal: wait for running requests, then for leases.

    A worker waits for those of the engine that it is part of.
    """
    section = ctx.role(role)
    timeout, port = section.drain_timeout.seconds, ports.engine_http(ctx.spec.engine.args, section)
    asked = ["--leader"] if worker else []
    return ["python3", "-m", "kvserving_connector.drain", f"--timeout={timeout}", f"--port={port}", *asked]


def command(*, worker: bool = False) -> list[str]:
    """The program of an engine's pod. The API server knows no engine without an API, which a worker is."""
    return ["python3", "-m", *(_WITHOUT_API if worker else ("vllm.entrypoints.openai.api_server",))]


def engine_args(ctx: Context, role: RoleName, *, worker: bool = False) -> list[str]:
    """Arguments of a role's engines: ours first, then the object's, then the role's."""
    section, profile = ctx.role(role), ctx.profile
    parallel = section.parallelism
    args = [
        "--host=$(KVSERVING_BIND_ADDRESS)",
        f"--port={ports.engine_http(ctx.spec.engine.args, section)}",
        *sources.model_args(ctx),
        f"--tensor-parallel-size={parallel.tensor}",
    ]
    if parallel.pipeline > 1:
        args.append(f"--pipeline-parallel-size={parallel.pipeline}")
    if parallel.data > 1:
        args.append(f"--data-parallel-size={parallel.data}")
    if parallel.expert:
        args.append("--enable-expert-parallel")
    if section.nodes > 1:
        args += _node(section.nodes, worker)
    if profile.block_size is not None:
        args.append(f"--block-size={profile.block_size}")
    args += [f"--kv-cache-dtype={literal(profile.kv_dtype)}", f"--prefix-caching-hash-algo={profile.hash_algorithm}"]
    if profile.hybrid != "auto":
        switch = "--no-disable-" if profile.hybrid == "enabled" else "--disable-"
        args.append(f"{switch}hybrid-kv-cache-manager")
    for name, value in state_settings(ctx.spec, ctx.facts):
        args.append(name if value == name else f"{name}={value}")
    config = transfer_config(ctx.spec, ctx.build, role, storage.tier_config(ctx))
    if config is not None:
        args.append(f"--kv-transfer-config={literal(render(config))}")
    args += ["--middleware=kvserving_connector.guard.Guard", f"--shutdown-timeout={section.drain_timeout.seconds}"]
    # Probes and scrapes come every few seconds; among them nobody finds the line that matters. vLLM 0.16 and newer.
    args.append("--disable-access-log-for-endpoints=/health,/metrics")
    users = arguments.without((*ctx.spec.engine.args, *section.args), "--port")
    # An engine without an API refuses the number of its API servers.
    return [*args, *(arguments.without(users, "--api-server-count") if worker else users)]


def _node(nodes: int, worker: bool) -> list[str]:
    """Which part of an engine a pod is. LeaderWorkerSet sets the variables in every container of a group."""
    rank = "$(LWS_WORKER_INDEX)" if worker else "0"
    args = [f"--nnodes={nodes}", f"--node-rank={rank}", "--master-addr=$(LWS_LEADER_ADDRESS)"]
    return [*args, "--headless"] if worker else args


def engine_env(ctx: Context, role: RoleName) -> list[dict[str, Any]]:
    """Environment of a role's engines. The role's own variables win over the object's."""
    merged = {variable["name"]: variable for variable in _own_env(ctx, role)}
    users = user_env(ctx, role)
    for name in users:
        merged.pop(name, None)
    return [*merged.values(), *users.values()]


def user_env(ctx: Context, role: RoleName) -> dict[str, dict[str, Any]]:
    """The user's variables by name, as in a pod."""
    variables = (*ctx.spec.engine.env, *ctx.role(role).env)
    return {variable.name: variable.model_dump(by_alias=True, exclude_none=True) for variable in variables}


def _own_env(ctx: Context, role: RoleName) -> list[dict[str, Any]]:
    section = ctx.role(role)
    values: dict[str, str] = {
        "KVSERVING_NAME": ctx.name,
        "KVSERVING_ROLE": role if ctx.disaggregated else "aggregated",
        "KVSERVING_REVISION": ctx.revision,
        "KVSERVING_LEASE_SECONDS": str(ctx.spec.transfer.lease.seconds),
        "KVSERVING_SIGNING_KEY_FILE": f"{KEYS_PATH}/signing",
        "KVSERVING_BIND_ADDRESS": "0.0.0.0",  # noqa: S104 - reached through the pod's own address only
        "PYTHONHASHSEED": ctx.profile.hash_seed,
    }
    env = [{"name": name, "value": value} for name, value in values.items()]
    env += [_field("POD_IP", "status.podIP"), _field("POD_NAME", "metadata.name"), _field("POD_UID", "metadata.uid")]
    if section.nodes > 1:
        # Else vLLM takes the address of the way to the internet, which a pod with several networks may have elsewhere.
        env.append(_field("VLLM_HOST_IP", "status.podIP"))
    extra: dict[str, str] = {}
    if ctx.disaggregated:
        env.append(_field("VLLM_NIXL_SIDE_CHANNEL_HOST", "status.podIP"))
        extra["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(ports.side_channel(role, section))
        extra["VLLM_EC_SIDE_CHANNEL_PORT"] = str(ports.encoder_channel(role, section))
        extra |= _fabric(ctx)
    if ctx.profile.state_layout is not None:
        extra["VLLM_SSM_CONV_STATE_LAYOUT"] = ctx.profile.state_layout
    if ctx.cpu:
        extra["VLLM_CPU_KVCACHE_SPACE"] = "1" if ctx.site.local else "4"
    if ctx.spec.kvcached.enabled:
        extra |= _kvcached(ctx)
    env += [{"name": name, "value": value} for name, value in extra.items()]
    if not ctx.site.local:
        env += _home(ctx)
    return [*env, *sources.model_env(ctx), *storage.engine_env(ctx, role)]


def _fabric(ctx: Context) -> dict[str, str]:
    if ctx.cpu:
        return {"UCX_TLS": UCX_CPU_LOCAL, "UCX_NET_DEVICES": "lo"} if ctx.site.local else {"UCX_TLS": UCX_CPU_POD}
    return {"UCX_TLS": UCX_RDMA if uses_rdma(ctx) else UCX_PLAIN}


def prefetch_env(ctx: Context, role: RoleName) -> list[dict[str, Any]]:
    """Environment of what fetches weights before an engine starts: the hub's credentials, and the user's variables."""
    merged = {variable["name"]: variable for variable in (*_home(ctx), *sources.model_env(ctx))}
    return list({**merged, **user_env(ctx, role)}.values())


def _home(ctx: Context) -> list[dict[str, Any]]:
    # An unprivileged user without a home or a name stops torch's and vLLM's caches.
    values = {"HOME": HOME_PATH, "USER": "kvserving", "LOGNAME": "kvserving"}
    if ctx.spec.engine.connector == "inject":
        values["PYTHONPATH"] = CONNECTOR_PATH
    return [{"name": name, "value": value} for name, value in values.items()]


def _kvcached(ctx: Context) -> dict[str, str]:
    env = {
        "ENABLE_KVCACHED": "true",
        "KVCACHED_AUTOPATCH": "1",
        "KVCACHED_CONTIGUOUS_LAYOUT": "false",
        # At most 64 characters with the pod's 36-character uid, unique per engine.
        "KVCACHED_IPC_NAME": f"{ctx.names.base[:27].rstrip('-')}-$(POD_UID)",
        **ctx.build.kvcached_env,
    }
    if ctx.spec.kvcached.max_cached_tokens is not None:
        env["KVCACHED_MAX_CACHED_TOKENS"] = str(ctx.spec.kvcached.max_cached_tokens)
    return env


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def probes(ctx: Context, role: RoleName) -> dict[str, Any]:
    """Startup, readiness and liveness of an engine.

    Readiness needs 8 s of good answers: a pod that is NotReady for less time is taken out
    by the router for up to a minute. It bears two answers that take longer than 5 s: an event loop that is short of
    CPU, as all of a role may be at once, still serves.

    Liveness bears 35 s without an answer and ends a stopped process within 45 s. What does not answer cannot drain
    either: it is killed after ``DEAD_GRACE_SECONDS``, within a minute in all, and not after the pod's own grace period.
    """
    section = ctx.role(role)
    health = {"httpGet": {"path": "/health", "port": "http"}}
    failures = -(-section.startup_timeout.seconds // 5)
    return {
        "startupProbe": {**health, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": failures},
        "readinessProbe": {
            **health,
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "successThreshold": 2,
            "failureThreshold": 3,
        },
        "livenessProbe": {
            **health,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 4,
            "terminationGracePeriodSeconds": DEAD_GRACE_SECONDS,
        },
    }


def container_ports(ctx: Context, role: RoleName) -> list[dict[str, Any]]:
    """Ports that an engine declares: HTTP and one side channel per data-parallel rank."""
    section = ctx.role(role)
    declared = [{"name": "http", "containerPort": ports.engine_http(ctx.spec.engine.args, section)}]
    if ctx.disaggregated:
        base = ports.side_channel(role, section)
        ranks = section.parallelism.data
        declared += [{"name": f"nixl-{rank}", "containerPort": base + rank} for rank in range(ranks)]
    return declared


def names_device(resource: str) -> bool:
    """Whether a resource is an accelerator, whole or a slice of one."""
    return "/" in resource and ("gpu" in resource or resource.startswith("nvidia.com/"))


def resources(ctx: Context, role: RoleName) -> dict[str, Any]:
    """Requests and limits of one pod: the user's, with devices and host memory added where they name none."""
    section = ctx.role(role)
    limits = {name: str(value) for name, value in section.resources.limits.items()}
    requests = {name: str(value) for name, value in section.resources.requests.items()}
    if not ctx.cpu and not any(names_device(name) for name in limits):
        limits.setdefault("nvidia.com/gpu", str(ranks_per_pod(ctx.spec, role)))
    need = host_memory(ctx.spec, role)
    if need.tiers:
        limits.setdefault("memory", quantity(need.total))
        requests.setdefault("memory", limits["memory"])
    rdma = ctx.spec.transfer.rdma
    if uses_rdma(ctx) and rdma.resource is not None:
        limits.setdefault(rdma.resource, "1")
        requests.setdefault(rdma.resource, limits[rdma.resource])
    rendered: dict[str, Any] = {"limits": limits, "requests": requests}
    if uses_rdma(ctx) and rdma.claim_template is not None:
        rendered["claims"] = [{"name": "rdma"}]
    return {key: value for key, value in rendered.items() if value}
