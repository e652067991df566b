"""Scalers of the roles. Each acts on the role's own scale target, which has a selector.

The target is a ``KVServingRole`` of the same name in every revision; the operator maps its
replicas to the current revision's engines, so a rollout never resets what a scaler set.
"""

from __future__ import annotations

from typing import Any

from ..api.v1alpha1 import Autoscaling, RoleName
from . import labels
from .context import Context
from .objects import manifest

ROLE_API = "kvserving.dev/v1alpha1"
ROLE_KIND = "KVServingRole"

# Name of the per-engine metric and target by what is measured. Latencies are given in
# milliseconds and measured in seconds, KV use in percent and measured as a share.
_METRICS = {
    "queue": ("vllm:num_requests_waiting", 8, 1),
    "ttft": ("vllm:time_to_first_token_seconds", 500, 1000),
    "itl": ("vllm:inter_token_latency_seconds", 50, 1000),
    "kvUsage": ("vllm:kv_cache_usage_perc", 80, 100),
}
_AUTO: dict[RoleName, str] = {"prefill": "queue", "decode": "kvUsage"}


def objects(ctx: Context) -> list[dict[str, Any]]:
    """Scale targets and scalers of the roles that are scaled; none while the object is suspended."""
    made: list[dict[str, Any]] = []
    for role in ctx.roles:
        scaling = ctx.role(role).autoscaling
        if scaling is None or ctx.spec.suspend:
            continue
        made.append(_target(ctx, role, scaling))
        if scaling.via == "hpa":
            made.append(_hpa(ctx, role, scaling))
        elif scaling.via == "keda":
            made.append(_keda(ctx, role, scaling))
    return made


def metric(role: RoleName, scaling: Autoscaling) -> tuple[str, str]:
    """Name of the metric per engine, and its target as a quantity in the metric's own unit."""
    kind = _AUTO[role] if scaling.metric == "auto" else scaling.metric
    if kind == "custom":
        return scaling.metric_name or "", str(scaling.target or 1)
    name, default, scale = _METRICS[kind]
    value = scaling.target or default
    return name, str(value) if scale == 1 else f"{value * 1000 // scale}m"


def _target(ctx: Context, role: RoleName, scaling: Autoscaling) -> dict[str, Any]:
    spec = {
        "servingName": ctx.name,
        "role": role,
        "bounds": {"min": scaling.min, "max": scaling.max},
        "selector": ",".join(labels.terms(labels.selector(ctx.name, role))),
    }
    return manifest(ctx, ROLE_API, ROLE_KIND, ctx.names.scale(role), role=role, spec=spec)


def _hpa(ctx: Context, role: RoleName, scaling: Autoscaling) -> dict[str, Any]:
    name, target = metric(role, scaling)
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
        ],
        "behavior": {"scaleDown": _scale_down(ctx, role)},
    }
    return manifest(ctx, "autoscaling/v2", "HorizontalPodAutoscaler", ctx.names.scale(role), role=role, spec=spec)


def _keda(ctx: Context, role: RoleName, scaling: Autoscaling) -> dict[str, Any]:
    name, target = metric(role, scaling)
    pods = f'kvserving_dev_name="{ctx.name}",kvserving_dev_role="{role}"'
    threshold = str(int(target[:-1]) / 1000) if target.endswith("m") else target
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
                    "serverAddress": f"http://prometheus-operated.{ctx.site.monitoring_namespace}.svc:9090",
                    "query": _query(name, pods),
                    "threshold": threshold,
                },
            }
        ],
    }
    return manifest(ctx, "keda.sh/v1alpha1", "ScaledObject", ctx.names.scale(role), role=role, spec=spec)


def _query(name: str, pods: str) -> str:
    if name.endswith("_seconds"):
        return f"histogram_quantile(0.95, sum by (le) (rate({name}_bucket{{{pods}}}[2m])))"
    return f"avg({name}{{{pods}}})" if name.endswith("_perc") else f"sum({name}{{{pods}}})"


def _reference(ctx: Context, role: RoleName) -> dict[str, Any]:
    return {"apiVersion": ROLE_API, "kind": ROLE_KIND, "name": ctx.names.scale(role)}


def _scale_down(ctx: Context, role: RoleName) -> dict[str, Any]:
    # One engine at a time, and not before the last one had its time to drain.
    drain = ctx.role(role).drain_timeout.seconds
    return {
        "stabilizationWindowSeconds": min(max(drain, 300), 3600),
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": min(max(drain, 60), 1800)}],
    }
