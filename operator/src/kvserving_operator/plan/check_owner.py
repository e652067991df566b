"""Checks of the tiers of ours: what the one that the scheduler or the workers own cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from ..api.faults import Fault
from ..api.v1alpha1 import RoleName
from ..connectors import OWNERS, TIERED, WORKER, l2_type, roles_with_l1, roles_with_l2, tier_children
from ..engines import arguments, catalog
from ..profile import PREFIX_CACHING, STATE_MODE
from .context import Context


def faults(ctx: Context) -> Iterator[Fault]:
    """Faults in what the tiers need of the engine, and in settings that their owner does not have."""
    tiers = {role: name for role in ctx.roles for name in tier_children(ctx.spec, role) if name in OWNERS}
    workers = tuple(role for role, name in tiers.items() if name == WORKER)
    yield from _version(ctx, tiers)
    yield from _groups(ctx, workers)
    yield from _one_host(ctx, tiers)
    yield from _policy(ctx, workers)
    yield from _store(ctx, workers)
    yield from _prefix_caching(ctx, workers)
    yield from _states(ctx, workers)
    yield from _weights(ctx, tiers)


def _version(ctx: Context, tiers: dict[RoleName, str]) -> Iterator[Fault]:
    build = ctx.build
    if not tiers or not build.supported or not build.reduced:
        return
    oldest = catalog.text(catalog.FULL_SUPPORT)
    message = (
        f"spec.cache needs vLLM {oldest} or newer, and this is {build.version}, in which engines with "
        f"{' and '.join(dict.fromkeys(tiers.values()))} do not start: set a newer version, or leave out cache.l1 and "
        "cache.l2"
    )
    yield Fault(ctx.version_field, message, build.version)


def _groups(ctx: Context, workers: tuple[RoleName, ...]) -> Iterator[Fault]:
    """A copy that fails can be told by block for one cache group only; vLLM hears of requests since 0.30."""
    build = ctx.build
    if not workers or build.reduced or build.tells_failed_requests:
        return
    if ctx.several_groups:
        oldest = catalog.text(catalog.FAILED_REQUESTS)
        message = (
            f"the tier that workers own needs vLLM {oldest} or newer for models with several cache groups (this one: "
            f"{ctx.facts.kind}), and this is {build.version}, where a copy that fails ends the engine: use a newer one"
        )
        yield Fault(ctx.version_field, message + _or_scheduler(ctx, workers), build.version)


def _one_host(ctx: Context, tiers: dict[RoleName, str]) -> Iterator[Fault]:
    l1 = ctx.spec.cache.l1
    for role, name in tiers.items():
        nodes = ctx.role(role).nodes
        if l1 is not None and name == TIERED and nodes > 1:
            message = (
                f"{l1.owner}: the scheduler's tier lies in the memory of one host, and spec.{role}.nodes is {nodes}: "
                "use auto or worker"
            )
            yield Fault("spec.cache.l1.owner", message, l1.owner)
            return


def _policy(ctx: Context, workers: tuple[RoleName, ...]) -> Iterator[Fault]:
    l1 = ctx.spec.cache.l1
    if l1 is not None and l1.policy != "lru" and set(workers) & set(roles_with_l1(ctx.spec)):
        message = f"{l1.policy}: workers that own the tier evict what was used least recently, by nothing else: use lru"
        yield Fault("spec.cache.l1.policy", message + _or_scheduler(ctx, workers), l1.policy)


def _store(ctx: Context, workers: tuple[RoleName, ...]) -> Iterator[Fault]:
    l2 = ctx.spec.cache.l2
    if l2 is not None and l2_type(l2) == "s3" and set(workers) & set(roles_with_l2(ctx.spec)):
        message = "s3: vLLM's tier for buckets belongs to the scheduler, and here workers own it: use another type"
        yield Fault("spec.cache.l2.type", message + _or_scheduler(ctx, workers), "s3")


def _or_scheduler(ctx: Context, workers: tuple[RoleName, ...]) -> str:
    """The second way out, where the scheduler can own the tier."""
    can = not ctx.spec.kvcached.enabled and all(ctx.role(role).nodes == 1 for role in workers)
    return ", or set spec.cache.l1.owner to scheduler" if can else ""


def _prefix_caching(ctx: Context, workers: tuple[RoleName, ...]) -> Iterator[Fault]:
    """Of ``engine.args`` alone: a rule refuses the flag for one role."""
    if not workers:
        return
    switches = [
        flag
        for flag in arguments.parse(ctx.spec.engine.args)
        if arguments.stands_for(arguments.positive(flag.name), (PREFIX_CACHING,)) is not None
    ]
    if switches and switches[-1].name.startswith("--no-"):
        given = switches[-1].name
        message = (
            f"{given} leaves nothing for a tier that workers own, which continues the engine's own prefix cache: "
            "remove the flag, or leave out cache.l1 and cache.l2"
        )
        yield Fault(f"spec.engine.args[{switches[-1].start}]", message, given)


def _states(ctx: Context, workers: tuple[RoleName, ...]) -> Iterator[Fault]:
    """States that are kept where no prefix can be resumed. Without the flag the plan renders the right one."""
    given = arguments.find(ctx.spec.engine.args, STATE_MODE)
    if not workers or ctx.facts.kind != "recurrent" or not given or given[-1].value == "align":
        return
    message = (
        f"{STATE_MODE} keeps the states of this model at no boundary that a tier of workers could resume a prompt "
        f"from: remove the flag or write {STATE_MODE}=align"
    )
    yield Fault(f"spec.engine.args[{given[-1].start}]", message + _or_scheduler(ctx, workers), STATE_MODE)


def _weights(ctx: Context, tiers: dict[RoleName, str]) -> Iterator[Fault]:
    """A weight of a tier that no role has: it would be neither a weight nor a further connector."""
    for index, name in enumerate(connector.name for connector in ctx.spec.cache.connectors):
        if name not in OWNERS or name in tiers.values():
            continue
        other = next(iter(tiers.values()), None)
        if other is None:
            message = f"{name} is a tier, and no role has one: set spec.cache.l1 or spec.cache.l2, or remove the entry"
        else:
            message = f"{name} is not the tier of this object: name {other}"
            if ctx.spec.cache.l1 is not None and not ctx.spec.kvcached.enabled:
                message += f", or set spec.cache.l1.owner to {OWNERS[name]}"
        yield Fault(f"spec.cache.connectors[{index}].name", message, name)
