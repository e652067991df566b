"""Checks of elastic GPU memory: what kvcached cannot be combined with, on engine versions that it patches."""

from __future__ import annotations

from collections.abc import Iterator

from ..api.faults import Fault
from ..connectors import MOONCAKE, NIXL, OWNERS, TIERED, l2_type, tier_children
from ..engines import arguments, catalog
from .context import Context

EVENTS = "--kv-events-config"
_OFF = "or set spec.kvcached.enabled to false"


def faults(ctx: Context) -> Iterator[Fault]:
    """Faults in what an object combines with ``spec.kvcached``; version and runner belong to the engine's checks."""
    if not ctx.spec.kvcached.enabled or ctx.cpu:
        return
    yield from _late_reads(ctx)
    yield from _ranks(ctx)
    yield from _pair(ctx)
    yield from _tiers(ctx)
    yield from _events(ctx)


def _ranks(ctx: Context) -> Iterator[Fault]:
    for role in ctx.roles:
        section = ctx.role(role)
        if section.parallelism.data > 1:
            message = (
                f"{section.parallelism.data}: kvcached names an engine's shared memory and sockets by "
                "KVCACHED_IPC_NAME, and the data-parallel ranks of a pod have one name: each would map and free the "
                f"others' blocks. Use replicas instead, {_OFF}"
            )
            yield Fault(f"spec.{role}.parallelism.data", message, str(section.parallelism.data))
        if section.nodes > 1:
            message = f"{section.nodes}: kvcached reaches ranks over sockets of one host: set it to 1, {_OFF}"
            yield Fault(f"spec.{role}.nodes", message, str(section.nodes))


def _late_reads(ctx: Context) -> Iterator[Fault]:
    """Engines that use what a read brings when its lease is over; under kvcached reads are that slow."""
    build = ctx.build
    if not ctx.disaggregated or not build.kvcached_supported:
        return
    if build.finds_late_reads(several_groups=ctx.several_groups):
        return
    # What finds no late read does not stage either, be it for its version or for the model.
    of_model = "" if build.reduced else f" for a model with several cache groups (this one: {ctx.facts.kind})"
    message = (
        f"{build.version} uses KV that is read after spec.transfer.lease ({ctx.spec.transfer.lease}) is over{of_model}"
        ", when it may be another prompt's and the answer wrong, and it stages no transfer: under kvcached reads from "
        f"blocks take seconds. Use vLLM {catalog.text(catalog.NEWEST_KVCACHED)}, leave out spec.prefill, {_OFF}"
    )
    yield Fault(ctx.version_field, message, build.version)


def _pair(ctx: Context) -> Iterator[Fault]:
    """What NIXL cannot transfer between engines whose memory kvcached maps."""
    if ctx.spec.prefill is None:
        return
    if ctx.facts.kind == "recurrent":
        message = (
            "true for a model with recurrent layers: their state shares pages with attention under kvcached, and a "
            "transfer of it by NIXL is not proved right: leave out spec.prefill, or set it to false"
        )
        yield Fault("spec.kvcached.enabled", message, "true")
    prefill, decode = ctx.spec.prefill.parallelism.tensor, ctx.spec.decode.parallelism.tensor
    if prefill != decode and ctx.facts.kv_heads is not None and not ctx.facts.latent:
        message = (
            f"{prefill} differs from spec.decode.parallelism.tensor, {decode}: under kvcached the heads of a block are "
            f"not contiguous, and NIXL cannot share them out to other numbers of ranks. Use the same number, {_OFF}"
        )
        yield Fault("spec.prefill.parallelism.tensor", message, str(prefill))


def _tiers(ctx: Context) -> Iterator[Fault]:
    cache = ctx.spec.cache
    if TIERED in tier_children(ctx.spec) and cache.l1 is not None and cache.l1.owner == "scheduler":
        message = (
            "scheduler: its tier copies blocks after the engine has freed them, when kvcached may have taken their "
            f"memory away: L1 would hold zeros for a prompt. Use auto or worker, {_OFF}"
        )
        yield Fault("spec.cache.l1.owner", message, "scheduler")
    if l2_type(cache.l2) == "mooncake":
        message = (
            f"mooncake: {MOONCAKE} registers GPU memory of its own accord and was never run under kvcached: use "
            f"another type, {_OFF}"
        )
        yield Fault("spec.cache.l2.type", message, "mooncake")
    derived = {NIXL, *OWNERS, *((MOONCAKE,) if l2_type(cache.l2) == "mooncake" else ())}
    for index, name in enumerate(connector.name for connector in cache.connectors):
        if name not in derived:
            message = (
                f"{name} was never run under kvcached, which takes the memory of freed blocks away and keeps blocks in "
                f"no queue of vLLM's: remove the entry (cache.l1 and cache.l2 work), {_OFF}"
            )
            yield Fault(f"spec.cache.connectors[{index}].name", message, name)


def _events(ctx: Context) -> Iterator[Fault]:
    sections = [("spec.engine.args", ctx.spec.engine.args)]
    sections += [(f"spec.{role}.args", ctx.role(role).args) for role in ctx.roles]
    for path, args in sections:
        for flag in arguments.find(args, EVENTS):
            message = (
                f"{EVENTS}: kvcached's blocks give no KV events, and subscribers would hear nothing: remove it, {_OFF}"
            )
            yield Fault(f"{path}[{flag.start}]", message, EVENTS)
