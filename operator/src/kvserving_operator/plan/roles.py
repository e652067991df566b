"""Deployments of the two roles, and the pods of their engines."""

from __future__ import annotations

from typing import Any

from ..amounts import quantity
from ..api.v1alpha1 import RoleName
from ..memory import host_memory
from ..routers import CONNECTOR_ANNOTATION
from . import engine, labels, sources, storage, template
from .context import Context
from .objects import manifest
from .security import USER_ID, pod_context, sealed_container

# Any other value, MultiConnector included, turns P/D off silently.
_ROUTER_ANNOTATION = {CONNECTOR_ANNOTATION: "NixlConnector"}

PREFETCH = "prefetch"

Pair = tuple[dict[str, Any], dict[str, Any]]


def deployment(ctx: Context, role: RoleName) -> dict[str, Any]:
    """The Deployment of a role. ``replicas`` is absent where a scaler owns the number."""
    section, rollout = ctx.role(role), ctx.spec.rollout
    spec: dict[str, Any] = {}
    count = replicas(ctx, role)
    if count is not None:
        spec["replicas"] = count
    spec |= {
        "selector": {"matchLabels": labels.selector(ctx.name, role, ctx.revision)},
        "strategy": _strategy(ctx),
        "progressDeadlineSeconds": max(rollout.progress_deadline.seconds, section.startup_timeout.seconds + 60),
        "revisionHistoryLimit": 2,
    }
    if rollout.paused:
        spec["paused"] = True
    spec["template"] = pod_template(ctx, role)
    name = ctx.names.engines(role)
    made = manifest(ctx, "apps/v1", "Deployment", name, role=role, revision=ctx.revision, spec=spec)
    made["metadata"]["annotations"] = notes(ctx)
    return made


def notes(ctx: Context) -> dict[str, str]:
    """What is noted on the workload of a role."""
    return {
        labels.ENGINE_VERSION: ctx.profile.engine_version,
        labels.ENGINE_IMAGE: ctx.profile.engine_image,
        labels.SERVED_MODEL: ctx.spec.model.served_name,
    }


def replicas(ctx: Context, role: RoleName) -> int | None:
    """Number of engines to ask for; None where a scaler decides. A local site has no scaler."""
    section = ctx.role(role)
    if ctx.spec.suspend:
        return 0
    if section.autoscaling is not None:
        return section.autoscaling.min if ctx.site.local else None
    return 1 if section.replicas is None else section.replicas


def pod_template(ctx: Context, role: RoleName, *, worker: bool = False) -> dict[str, Any]:
    """The pod of a role, with the user's template merged over it.

    A ``worker`` is a further pod of an engine that spans nodes: it computes, and takes no requests.
    """
    named = labels.worker(role) if worker else role
    metadata: dict[str, Any] = {"labels": labels.child_labels(ctx.name, named, ctx.revision)}
    marks = dict(_ROUTER_ANNOTATION) if ctx.disaggregated and not worker else {}
    marks |= queue(ctx)
    if marks:
        metadata["annotations"] = marks
    rendered = {"metadata": metadata, "spec": _pod_spec(ctx, role, worker)}
    return template.merge(rendered, ctx.role(role).template or {})


def queue(ctx: Context) -> dict[str, str]:
    """The annotation by which Volcano knows the queue of a pod, or of a group of them."""
    named = ctx.spec.scheduling.queue
    return {} if named is None else {"scheduling.volcano.sh/queue-name": named}


def _pod_spec(ctx: Context, role: RoleName, worker: bool) -> dict[str, Any]:
    pairs = _volumes(ctx, role)
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        # A Service called "vllm" would otherwise inject VLLM_PORT and stop the engine.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": engine.grace_seconds(ctx, role),
        "securityContext": pod_context(USER_ID, change_policy="OnRootMismatch"),
    }
    first = []
    if ctx.spec.engine.connector == "inject" and not ctx.site.local:
        first.append(_connector_container(ctx))
    if fetched := sources.fetched(ctx):
        first.append(_prefetch_container(ctx, role, fetched, [mount for _, mount in pairs]))
    if first:
        spec["initContainers"] = first
    spec["containers"] = [_engine_container(ctx, role, [mount for _, mount in pairs], worker)]
    spec["volumes"] = [volume for volume, _ in pairs]
    spec |= _placement(ctx)
    if engine.uses_rdma(ctx) and ctx.spec.transfer.rdma.claim_template is not None:
        claim = ctx.spec.transfer.rdma.claim_template
        spec["resourceClaims"] = [{"name": "rdma", "resourceClaimTemplateName": claim}]
    return spec


def _engine_container(ctx: Context, role: RoleName, mounts: list[dict[str, Any]], worker: bool) -> dict[str, Any]:
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if engine.uses_rdma(ctx):
        # RDMA registers memory beyond the default memlock limit.
        capabilities["add"] = ["IPC_LOCK"]
    return {
        "name": "engine",
        "image": ctx.build.image,
        "command": engine.command(worker=worker),
        "args": engine.engine_args(ctx, role, worker=worker),
        "env": engine.engine_env(ctx, role),
        # Nobody asks a worker: its leader is ready when it is, and LeaderWorkerSet replaces both when it ends.
        **({} if worker else {"ports": engine.container_ports(ctx, role)}),
        "resources": engine.resources(ctx, role),
        **({} if worker else engine.probes(ctx, role)),
        "lifecycle": {"preStop": {"exec": {"command": engine.drain_command(ctx, role, worker=worker)}}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": capabilities},
        "volumeMounts": mounts,
    }


def _connector_container(ctx: Context) -> dict[str, Any]:
    return {
        "name": "connector",
        "image": ctx.site.connector_image,
        "command": ["cp", "-R", "/connector/.", engine.CONNECTOR_PATH],
        "resources": {"limits": {"memory": "128Mi"}, "requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": sealed_container(),
        "volumeMounts": [{"name": "connector", "mountPath": engine.CONNECTOR_PATH}],
    }


def _prefetch_container(
    ctx: Context, role: RoleName, fetched: list[str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": PREFETCH,
        "image": ctx.build.image,
        "command": ["python3", "-m", "kvserving_connector.prefetch"],
        "args": fetched,
        "env": engine.prefetch_env(ctx, role),
        "resources": {"limits": {"memory": "8Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [mount for mount in mounts if mount["name"] in ("connector", "home", "model-cache")],
    }


def _volumes(ctx: Context, role: RoleName) -> list[Pair]:
    keys = {"secretName": ctx.names.keys, "items": [{"key": "signing", "path": "signing"}], "defaultMode": 0o400}
    pairs: list[Pair] = [
        ({"name": "keys", "secret": keys}, {"name": "keys", "mountPath": engine.KEYS_PATH, "readOnly": True}),
    ]
    if not template.mounts_path(ctx.role(role).template, "/dev/shm"):  # noqa: S108 - vLLM's own path
        limit = quantity(host_memory(ctx.spec, role).shm)
        pairs.append(
            (
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}},
                {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            )
        )
    if not ctx.site.local:
        if ctx.spec.engine.connector == "inject":
            mount = {"name": "connector", "mountPath": engine.CONNECTOR_PATH, "readOnly": True}
            pairs.append(({"name": "connector", "emptyDir": {}}, mount))
        pairs.append(({"name": "home", "emptyDir": {}}, {"name": "home", "mountPath": engine.HOME_PATH}))
    return [*pairs, *sources.model_volumes(ctx), *storage.engine_volumes(ctx, role)]


def _strategy(ctx: Context) -> dict[str, Any]:
    rollout = ctx.spec.rollout
    if rollout.strategy == "Recreate":
        return {"type": "Recreate"}
    bounds = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    return {"type": "RollingUpdate", "rollingUpdate": bounds}


def _placement(ctx: Context) -> dict[str, Any]:
    scheduling = ctx.spec.scheduling
    placed: dict[str, Any] = {}
    if scheduling.gang == "volcano":
        placed["schedulerName"] = "volcano"
    elif scheduling.gang == "coscheduling":
        placed["schedulerName"] = "scheduler-plugins-scheduler"
    if scheduling.colocate is not None:
        near = {
            "topologyKey": scheduling.colocate.topology_key,
            "labelSelector": {"matchLabels": labels.selector(ctx.name)},
        }
        key = f"{scheduling.colocate.mode}DuringSchedulingIgnoredDuringExecution"
        preferred = scheduling.colocate.mode == "preferred"
        placed["affinity"] = {"podAffinity": {key: [{"weight": 100, "podAffinityTerm": near} if preferred else near]}}
    return placed
