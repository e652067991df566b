"""Scalers of the roles. Each acts on the role's own scale target, which has a selector.

The target is a ``KVServingRole`` of the same name in every revision; the operator maps its
replicas to the engines of the revisions that are there, so a rollout never resets what a scaler set.
"""

from __future__ import annotations

from typing import Any

from ..api import serving_role
from ..api.v1alpha1 import API_VERSION, Autoscaling, RoleName
from ..engines import arguments
from ..engines.written import whole
from . import labels
from .context import Context
from .objects import manifest

# Name of the per-engine metric and target by what is measured. Latencies are given in
# milliseconds and measured in seconds, KV use in percent and measured as a share.
_METRICS = {
    "queue": ("vllm:num_requests_waiting", 8, 1),
    "running": ("vllm:num_requests_running", 200, 1),
    "ttft": ("vllm:time_to_first_token_seconds", 500, 1000),
    "itl": ("vllm:inter_token_latency_seconds", 50, 1000),
    "kvUsage": ("vllm:kv_cache_usage_perc", 80, 100),
}
# Prefill's KV use is that of exports which decode has not fetched, most of all: its own requests are over at once.
# Every one exists from the first second of an engine: HPA never scales down while one is missing.
_AUTO: dict[RoleName, tuple[str, ...]] = {"prefill": ("queue", "ttft", "kvUsage"), "decode": ("kvUsage", "running")}


def objects(ctx: Context) -> list[dict[str, Any]]:
    """Scale targets and scalers of the roles that are scaled.

    While the object is suspended the targets stay, and with them the numbers asked for; nobody changes them.
    """
    made: list[dict[str, Any]] = []
    for role in ctx.roles:
        scaling = ctx.role(role).autoscaling
        if scaling is None:
            continue
        made.append(_target(ctx, role, scaling))
        if ctx.spec.suspend:
            continue
        if scaling.via == "hpa":
            made.append(_hpa(ctx, role, scaling))
        elif scaling.via == "keda":
            made.append(_keda(ctx, role, scaling))
    return made


def metrics(ctx: Context, role: RoleName, scaling: Autoscaling) -> tuple[tuple[str, str], ...]:
    """Name of each metric per engine, and its target as a quantity in the metric's own unit."""
    if scaling.metric == "custom":
        return ((scaling.metric_name or "", str(scaling.target or 1)),)
    kinds = _AUTO[role] if scaling.metric == "auto" else (scaling.metric,)
    targets = (scaling.target, *(None for _ in kinds[1:]))
    return tuple(_measured(ctx, role, kind, target) for kind, target in zip(kinds, targets, strict=True))


def _measured(ctx: Context, role: RoleName, kind: str, target: int | None) -> tuple[str, str]:
    name, default, scale = _METRICS[kind]
    value = target or (_most_running(ctx, role) if kind == "running" else None) or default
    return name, str(value) if scale == 1 else f"{value * 1000 // scale}m"


def _most_running(ctx: Context, role: RoleName) -> int | None:
    """Four fifths of what an engine may run at once, where the arguments say that; ``None`` where they do not."""
    given = arguments.last_value([*ctx.spec.engine.args, *ctx.role(role).args], "--max-num-seqs")
    most = None if given is None else whole(given)
    return None if most is None else max(1, most * 4 // 5)


def _target(ctx: Context, role: RoleName, scaling: Autoscaling) -> dict[str, Any]:
    spec = {
        "servingName": ctx.name,
        "role": role,
        "bounds": {"min": scaling.min, "max": scaling.max},
        "selector": ",".join(labels.terms(labels.selector(ctx.name, role))),
    }
    return manifest(ctx, API_VERSION, serving_role.KIND, ctx.names.scale(role), role=role, spec=spec)


def _hpa(ctx: Context, role: RoleName, scaling: Autoscaling) -> dict[str, Any]:
    spec = {
        "scaleTargetRef": _reference(ctx, role),
        "minReplicas": scaling.min,
        "maxReplicas": scaling.max,
        "metrics": [
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": name.replace(":", "_")},
                    "target": {"type": "AverageValue", "averageValue": target},
                },
            }
            for name, target in metrics(ctx, role, scaling)
        ],
        "behavior": {"scaleDown": _scale_down(ctx, role)},
    }
    return manifest(ctx, "autoscaling/v2", "HorizontalPodAutoscaler", ctx.names.scale(role), role=role, spec=spec)


def _keda(ctx: Context, role: RoleName, scaling: Autoscaling) -> dict[str, Any]:
    pods = f'kvserving_dev_name="{ctx.name}",kvserving_dev_role="{role}"'
    server = f"http://prometheus-operated.{ctx.site.monitoring_namespace}.svc:9090"
    spec = {
        "scaleTargetRef": _reference(ctx, role),
        "minReplicaCount": scaling.min,
        "maxReplicaCount": scaling.max,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": _scale_down(ctx, role)}}},
        "triggers": [
            {
                "type": "prometheus",
                "metricType": "Value" if name.endswith(("_seconds", "_perc")) else "AverageValue",
                "metadata": {
                    "serverAddress": server,
                    "query": _query(name, pods),
                    "threshold": str(int(target[:-1]) / 1000) if target.endswith("m") else target,
                },
            }
            for name, target in metrics(ctx, role, scaling)
        ],
    }
    return manifest(ctx, "keda.sh/v1alpha1", "ScaledObject", ctx.names.scale(role), role=role, spec=spec)


def _query(name: str, pods: str) -> str:
    if name.endswith("_seconds"):
        # Of no request at all the quantile is no number, which must not reach a scaler.
        quantile = f"histogram_quantile(0.95, sum by (le) (rate({name}_bucket{{{pods}}}[2m])))"
        return f"({quantile} >= 0) or vector(0)"
    return f"avg({name}{{{pods}}})" if name.endswith("_perc") else f"sum({name}{{{pods}}})"


def _reference(ctx: Context, role: RoleName) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": serving_role.KIND, "name": ctx.names.scale(role)}


def _scale_down(ctx: Context, role: RoleName) -> dict[str, Any]:
    # One engine at a time, and not before the last one had its time to drain.
    drain = ctx.role(role).drain_timeout.seconds
    return {
        "stabilizationWindowSeconds": min(max(drain, 300), 3600),
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": min(max(drain, 60), 1800)}],
    }
