"""Every check that needs the whole object, its engine version or its model's facts."""

from __future__ import annotations

from ..api.faults import Fault
from . import (
    check_args,
    check_blocks,
    check_cache,
    check_engine,
    check_env,
    check_gateway,
    check_kvcached,
    check_limits,
    check_owner,
    check_resources,
    check_template,
)
from .context import Context


def faults(ctx: Context) -> tuple[Fault, ...]:
    """All faults of an object, each once, in the order of the checks."""
    found = (
        *check_engine.faults(ctx),
        *check_blocks.faults(ctx),
        *check_args.faults(ctx),
        *check_limits.faults(ctx.spec),
        *check_env.faults(ctx),
        *check_resources.faults(ctx),
        *check_cache.faults(ctx),
        *check_owner.faults(ctx),
        *check_kvcached.faults(ctx),
        *check_gateway.faults(ctx),
        *check_template.faults(ctx),
    )
    return tuple(dict.fromkeys(found))
