"""The router of one revision: its command line, its pods, its Service and what it may read.

Flags follow what was measured on smg 1.13.0 and vllm-router 0.1.17. Each set of routers
selects only pods of its own revision, so engines that cannot exchange KV are never paired.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from ..routers import ROUTERS, SMG, VLLM_ROUTER, RouterKind
from . import labels, ports, roles
from .context import Context
from .engine import DEAD_GRACE_SECONDS, KEYS_PATH
from .objects import literal, manifest
from .security import USER_ID, pod_context, sealed_container

LAUNCHER_PATH = "/etc/kvserving/router"
API_KEY_PATH = "/etc/kvserving/api-key"
LAUNCHER = resources.files(__package__).joinpath("assets", "router_launch.py").read_text(encoding="utf-8")

# Policies by the router's own names: (prefill, decode). Decode has no prefix to prefer.
_POLICIES = {
    "cacheAware": ("cache_aware", "power_of_two"),
    "powerOfTwo": ("power_of_two", "power_of_two"),
    "roundRobin": ("round_robin", "round_robin"),
}


def deployed(ctx: Context) -> bool:
    """Whether the operator runs the router."""
    return ctx.spec.router.type in ROUTERS


def _kind(ctx: Context) -> RouterKind:
    return ROUTERS[ctx.spec.router.type]


def objects(ctx: Context) -> list[dict[str, Any]]:
    """Every object of the router; the Service also where a router of the user's is to stand behind it."""
    if not deployed(ctx):
        return []
    made = [_launcher(ctx), _deployment(ctx), _service(ctx)]
    if not ctx.site.local:
        made += _account(ctx)
        gateway = ctx.spec.router.gateway
        if gateway is not None and gateway.parent_refs:
            made.append(_route(ctx, [dict(ref) for ref in gateway.parent_refs]))
    return made


def router_args(ctx: Context) -> list[str]:
    """The launcher's arguments: which router, then its flags. No key is among them."""
    return [ctx.spec.router.type, *_FLAGS[ctx.spec.router.type](ctx)]


def engine_port(ctx: Context) -> int:
    """HTTP port of the engines; the checks see to it that both roles have the same."""
    return ports.engine_http(ctx.spec.engine.args, ctx.role("decode"))


def _smg(ctx: Context) -> list[str]:
    timeout = ctx.spec.router.request_timeout.seconds
    args = ["--host", "$(KVSERVING_BIND_ADDRESS)", "--port", str(ports.ROUTER_HTTP), "--backend", "vllm"]
    if ctx.disaggregated:
        args.append("--pd-disaggregation")
    if ctx.site.local:
        path = literal(ctx.site.discovery_file) if ctx.site.discovery_file else "$(KVSERVING_DISCOVERY_FILE)"
        args += ["--discovery-provider", "file", "--discovery-file", path]
    else:
        args += _kubernetes_discovery(ctx)
    return [
        *args,
        *_policies(ctx),
        *("--power-of-two-load-metric", "least_requests"),
        *("--health-check-interval-secs", "2", "--health-check-timeout-secs", "6"),
        *("--health-failure-threshold", "2", "--health-success-threshold", "1"),
        *("--no-remove-unhealthy-workers", "--worker-startup-check-interval", "2"),
        *("--cb-failure-threshold", "3", "--cb-timeout-duration-secs", "2", "--cb-success-threshold", "1"),
        *("--retry-max-retries", "8"),
        *("--request-timeout-secs", str(timeout), "--shutdown-grace-period-secs", str(timeout)),
        *("--max-payload-size", "67108864", "--history-backend", "none"),
        *("--health-check-port", str(SMG.health_port)),
        *("--prometheus-host", "$(KVSERVING_BIND_ADDRESS)", "--prometheus-port", str(ports.ROUTER_METRICS)),
        *("--log-level", "warn", "--log-json", "--disable-tokenizer-autoload"),
    ]


def _vllm_router(ctx: Context) -> list[str]:
    args = ["--host", "$(KVSERVING_BIND_ADDRESS)", "--port", str(ports.ROUTER_HTTP)]
    if ctx.disaggregated:
        args += ["--vllm-pd-disaggregation", "--kv-connector", "nixl"]
    if not ctx.site.local:
        args += _kubernetes_discovery(ctx)
    return [
        *args,
        *_policies(ctx),
        *("--health-check-interval-secs", "2", "--health-check-timeout-secs", "6"),
        *("--health-failure-threshold", "2", "--health-success-threshold", "1"),
        *("--worker-startup-check-interval", "2"),
        *("--worker-startup-timeout-secs", str(_longest_start(ctx))),
        *("--cb-failure-threshold", "3", "--cb-timeout-duration-secs", "2", "--cb-success-threshold", "1"),
        *("--retry-max-retries", "8"),
        *("--request-timeout-secs", str(ctx.spec.router.request_timeout.seconds)),
        *("--max-payload-size", "67108864"),
        *("--prometheus-host", "$(KVSERVING_BIND_ADDRESS)", "--prometheus-port", str(ports.ROUTER_METRICS)),
        *("--log-level", "warning"),
    ]


_FLAGS = {SMG.name: _smg, VLLM_ROUTER.name: _vllm_router}


def _kubernetes_discovery(ctx: Context) -> list[str]:
    args = ["--service-discovery", "--service-discovery-namespace", ctx.namespace]
    args += ["--service-discovery-port", str(engine_port(ctx))]

    def pods(role: str) -> tuple[str, ...]:
        return labels.terms(labels.selector(ctx.name, role, ctx.revision))

    if not ctx.disaggregated:
        return [*args, "--selector", *pods("decode")]
    return [*args, "--prefill-selector", *pods("prefill"), "--decode-selector", *pods("decode")]


def _policies(ctx: Context) -> list[str]:
    prefill, decode = _POLICIES[ctx.spec.router.policy]
    if not _kind(ctx).weighs_load:
        # Its power_of_two polls a load that vLLM does not serve, and refuses to start with one decode engine.
        decode = "round_robin"
    if not ctx.disaggregated:
        return ["--policy", prefill]
    return ["--prefill-policy", prefill, "--decode-policy", decode]


def _longest_start(ctx: Context) -> int:
    return max(ctx.role(role).startup_timeout.seconds for role in ctx.roles)


def _launcher(ctx: Context) -> dict[str, Any]:
    return manifest(ctx, "v1", "ConfigMap", ctx.names.launcher, data={"launch.py": LAUNCHER})


def _deployment(ctx: Context) -> dict[str, Any]:
    router = ctx.spec.router
    spec = {
        "replicas": 0 if ctx.spec.suspend else 1 if ctx.site.local else router.replicas,
        "selector": {"matchLabels": labels.selector(ctx.name, "router", ctx.revision)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "revisionHistoryLimit": 2,
        "template": {
            "metadata": {
                "labels": {**labels.child_labels(ctx.name, "router", ctx.revision), labels.TRAFFIC: labels.ON}
            },
            "spec": _pod_spec(ctx),
        },
    }
    return manifest(ctx, "apps/v1", "Deployment", ctx.names.router, role="router", revision=ctx.revision, spec=spec)


def _pod_spec(ctx: Context) -> dict[str, Any]:
    router = ctx.spec.router
    key_items = [{"key": "router-admin", "path": "router-admin"}]
    volumes: list[dict[str, Any]] = [
        {"name": "keys", "secret": {"secretName": ctx.names.keys, "items": key_items, "defaultMode": 0o400}},
        {"name": "launcher", "configMap": {"name": ctx.names.launcher}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "keys", "mountPath": KEYS_PATH, "readOnly": True},
        {"name": "launcher", "mountPath": LAUNCHER_PATH, "readOnly": True},
    ]
    env = [
        {"name": "KVSERVING_NAME", "value": ctx.name},
        {"name": "KVSERVING_ROLE", "value": "router"},
        {"name": "KVSERVING_REVISION", "value": ctx.revision},
        {"name": "KVSERVING_BIND_ADDRESS", "value": "0.0.0.0"},  # noqa: S104 - clients come from anywhere
        {"name": "KVSERVING_ROUTER_ADMIN_KEY_FILE", "value": f"{KEYS_PATH}/router-admin"},
    ]
    if ctx.site.local and not _kind(ctx).follows_file:
        engines = sum(roles.replicas(ctx, role) or 0 for role in ctx.roles)
        env.append({"name": "KVSERVING_EXPECTED_WORKERS", "value": str(engines)})
        env.append({"name": "KVSERVING_WORKER_WAIT_SECONDS", "value": str(_longest_start(ctx))})
    if _kind(ctx).checks_clients and router.api_key_secret_ref is not None:
        items = [{"key": "api-key", "path": "api-key"}]
        secret = {"secretName": router.api_key_secret_ref, "items": items, "defaultMode": 0o400}
        volumes.append({"name": "api-key", "secret": secret})
        mounts.append({"name": "api-key", "mountPath": API_KEY_PATH, "readOnly": True})
        env.append({"name": "KVSERVING_ROUTER_API_KEY_FILE", "value": f"{API_KEY_PATH}/api-key"})
    container = {
        "name": "router",
        "image": router.image or _kind(ctx).image,
        "command": ["python3", f"{LAUNCHER_PATH}/launch.py"],
        "args": router_args(ctx),
        "env": env,
        "ports": _container_ports(ctx),
        "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        **_probes(ctx),
        "securityContext": sealed_container(),
        "volumeMounts": mounts,
    }
    spec: dict[str, Any] = {
        # The listener stays open for 5 s after the stop signal, then streams get their time.
        "terminationGracePeriodSeconds": router.request_timeout.seconds + 15,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "securityContext": pod_context(USER_ID),
        "containers": [container],
        "volumes": volumes,
    }
    if not ctx.site.local:
        spec["serviceAccountName"] = ctx.names.router_account
    return spec


def _container_ports(ctx: Context) -> list[dict[str, Any]]:
    declared = [
        {"name": "http", "containerPort": ports.ROUTER_HTTP},
        {"name": "metrics", "containerPort": ports.ROUTER_METRICS},
    ]
    if (health := _kind(ctx).health_port) is not None:
        declared.append({"name": "health", "containerPort": health})
    return declared


def _probes(ctx: Context) -> dict[str, Any]:
    port = "http" if _kind(ctx).health_port is None else "health"
    ready = {"httpGet": {"path": "/readiness", "port": port}, "periodSeconds": 2, "timeoutSeconds": 2}
    alive = {"httpGet": {"path": "/liveness", "port": port}, "periodSeconds": 10, "timeoutSeconds": 5}
    # The pod's own grace is as long as the longest answer; one that is stopped answers nobody.
    alive |= {"failureThreshold": 3, "terminationGracePeriodSeconds": DEAD_GRACE_SECONDS}
    return {"readinessProbe": {**ready, "failureThreshold": 3}, "livenessProbe": alive}


def _service(ctx: Context) -> dict[str, Any]:
    service = ctx.spec.router.service
    spec = {
        "type": service.type,
        # Routers of two revisions may stand behind it, their numbers as those of their engines; never those of a set
        # that is not proved yet.
        "selector": {**labels.selector(ctx.name, "router"), labels.TRAFFIC: labels.ON},
        "ports": [{"name": "http", "port": service.port, "targetPort": "http"}],
    }
    return manifest(ctx, "v1", "Service", ctx.names.service, role="router", spec=spec)


def _account(ctx: Context) -> list[dict[str, Any]]:
    name, group = ctx.names.router_account, "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    return [
        manifest(ctx, "v1", "ServiceAccount", name, role="router", automountServiceAccountToken=False),
        manifest(ctx, f"{group}/v1", "Role", name, role="router", rules=rules),
        manifest(
            ctx,
            f"{group}/v1",
            "RoleBinding",
            name,
            role="router",
            roleRef={"apiGroup": group, "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": ctx.namespace}],
        ),
    ]


def _route(ctx: Context, parents: list[dict[str, Any]]) -> dict[str, Any]:
    backend = {"name": ctx.names.service, "port": ctx.spec.router.service.port}
    spec = {"parentRefs": parents, "rules": [{"backendRefs": [backend]}]}
    return manifest(ctx, "gateway.networking.k8s.io/v1", "HTTPRoute", ctx.names.service, role="router", spec=spec)
