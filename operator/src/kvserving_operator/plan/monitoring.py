"""Monitors of engines and routers, for clusters that run the Prometheus operator."""

from __future__ import annotations

from typing import Any

from . import labels, router
from .context import Context
from .objects import manifest

_API = "monitoring.coreos.com/v1"


def enabled(ctx: Context) -> bool:
    """Whether monitors are made: asked for, or left to what the cluster has installed."""
    asked = ctx.spec.monitoring.enabled
    return asked == "enabled" or (asked == "auto" and "PodMonitor" in ctx.observed.kinds)


def objects(ctx: Context) -> list[dict[str, Any]]:
    """One monitor for the engines of every role and revision, one for the routers."""
    if not enabled(ctx):
        return []
    made = [_monitor(ctx, ctx.names.engine_monitor, list(ctx.roles), "http")]
    if router.deployed(ctx):
        made.append(_monitor(ctx, ctx.names.router_account, ["router"], "metrics"))
    return made


def _monitor(ctx: Context, name: str, roles: list[str], port: str) -> dict[str, Any]:
    spec = {
        "selector": {
            "matchLabels": labels.selector(ctx.name),
            "matchExpressions": [{"key": labels.ROLE, "operator": "In", "values": roles}],
        },
        "podTargetLabels": [labels.NAME, labels.ROLE, labels.REVISION],
        "podMetricsEndpoints": [{"port": port, "path": "/metrics", "interval": "15s"}],
    }
    return manifest(ctx, _API, "PodMonitor", name, spec=spec)
