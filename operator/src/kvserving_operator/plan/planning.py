"""What makes the plan of one object: its faults, or everything that should exist for it. It imports every builder."""

from __future__ import annotations

from typing import Any

from ..api.faults import Fault, InvalidSpec
from ..api.v1alpha1 import KVServing
from . import autoscaling, checks, history, monitoring, multinode, network, notices, router, sources, storage
from .context import Context, make_context
from .types import CLUSTER, GeneratedSecret, Observed, Plan, Site


def check(serving: KVServing, *, site: Site = CLUSTER, observed: Observed = Observed()) -> tuple[Fault, ...]:  # noqa: B008
    """Every fault that keeps ``serving`` from being planned; empty where there is none."""
    return checks.faults(make_context(serving, site, observed))


def plan(serving: KVServing, *, site: Site = CLUSTER, observed: Observed = Observed()) -> Plan:  # noqa: B008
    """Everything that should exist for ``serving``.

    Raises ``InvalidSpec`` with every fault that ``check`` finds, and nothing else for an
    object that the models accept. Objects come in an order in which they can be created.
    """
    ctx = make_context(serving, site, observed)
    faults = checks.faults(ctx)
    if faults:
        raise InvalidSpec(faults)
    return Plan(
        name=ctx.name,
        namespace=ctx.namespace,
        revision=ctx.revision,
        profile=ctx.profile,
        objects=tuple(_objects(ctx)),
        generated_secrets=(
            GeneratedSecret(ctx.names.keys, {"signing": 32, "router-admin": 32}),
            *storage.generated_secrets(ctx),
        ),
        notices=notices.notices(ctx),
    )


def _objects(ctx: Context) -> list[dict[str, Any]]:
    engines = [multinode.workload(ctx, role) for role in ctx.roles]
    if ctx.site.local:
        return [*storage.objects(ctx), *engines, *router.objects(ctx)]
    return [
        history.config_map(ctx),
        *network.objects(ctx),
        *sources.model_claim(ctx),
        *storage.objects(ctx),
        *engines,
        *router.objects(ctx),
        *autoscaling.objects(ctx),
        *monitoring.objects(ctx),
    ]
