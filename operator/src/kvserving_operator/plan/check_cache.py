"""Checks of tiers, connectors and host memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..amounts import enough, quantity, size
from ..api.fault_words import suggestion
from ..api.faults import Fault
from ..api.rules_services import ENDPOINT_FORM, SECRETS, URL_FORMS
from ..api.stores import EXTERNAL, External
from ..api.v1alpha1 import L2
from ..connectors import (
    MODULES,
    NIXL,
    NIXL_WEIGHT,
    known,
    l2_type,
    roles_with_l1,
    staging_bytes,
    supports_hybrid,
    tier_children,
    weights,
)
from ..engines import catalog
from ..engines.catalog import UPSTREAM_CONNECTORS
from ..kv_size import block_bytes, block_tokens
from ..memory import CPU_ENGINE_BYTES, SMALLEST_SHARD, host_memory, ranks_per_pod
from . import addresses, storage
from .context import Context


def faults(ctx: Context) -> Iterator[Fault]:
    """Faults in ``cache``, in the hybrid setting and in what the tiers need of the host."""
    yield from _l1(ctx)
    yield from _staging(ctx)
    yield from _l2(ctx)
    yield from _two_buckets(ctx)
    yield from _connectors(ctx)
    yield from _hybrid(ctx)


_SMALLEST_L1 = 16 * 2**20
_SMALLEST_STAGING = 2**20


def _l1(ctx: Context) -> Iterator[Fault]:
    l1 = ctx.spec.cache.l1
    if l1 is not None and l1.size.bytes < _SMALLEST_L1:
        message = f"{l1.size} holds no chunk of a model's KV: give it some GiB (16Mi at least), or leave cache.l1 out"
        yield Fault("spec.cache.l1.size", message, l1.size)
    yield from _one_block(ctx)
    for role in ctx.roles:
        limit = ctx.role(role).resources.limits.get("memory")
        need = host_memory(ctx.spec, role)
        if limit is None or not need.tiers or limit.bytes >= need.total:
            continue
        on_l1 = l1 is not None and role in roles_with_l1(ctx.spec)
        path, value = ("spec.cache.l1.size", str(l1.size)) if on_l1 and l1 else ("spec.cache.l2", size(need.pool))
        message = (
            f"{value} does not fit into spec.{role}.resources.limits.memory {limit}: {need.explain()}. "
            f"Raise the limit to {enough(need.total)} or make the tier smaller"
        )
        yield Fault(path, message, value)


def _one_block(ctx: Context) -> Iterator[Fault]:
    """An L1 whose share of one rank holds no block; the engine would find that out when it has loaded the model."""
    l1, kv, device = ctx.spec.cache.l1, ctx.spec.engine.kv, ctx.build.device
    for role in roles_with_l1(ctx.spec):
        ranks = ranks_per_pod(ctx.spec, role)
        block = block_bytes(ctx.facts, kv, ctx.role(role).parallelism, device)
        if l1 is None or l1.size.bytes < _SMALLEST_L1 or block is None or l1.size.bytes // ranks >= block:
            continue
        share = f"is {quantity(l1.size.bytes // ranks)} for each of the {ranks} ranks of" if ranks > 1 else "is for"
        message = (
            f"{l1.size} {share} a {role} pod, and a block of {block_tokens(ctx.facts, kv, device)} tokens of this "
            f"model takes {quantity(block)}: set it to several times {quantity(block * ranks)}"
        )
        yield Fault("spec.cache.l1.size", message, l1.size)


def _staging(ctx: Context) -> Iterator[Fault]:
    """A pool that an engine's version makes none of, that holds no block, or that leaves a CPU engine no memory."""
    asked, kv, device = ctx.spec.transfer.staging_memory, ctx.spec.engine.kv, ctx.build.device
    if not staging_bytes(ctx.spec):
        return
    if not ctx.build.stages:
        if ctx.build.supported:
            message = (
                f"{asked}: vLLM {ctx.build.version} ({ctx.version_field}) has not what staging stands on, and "
                f"transfers would not be staged: use {catalog.text(catalog.FULL_SUPPORT)} or newer, or set it to 0"
            )
            yield Fault("spec.transfer.stagingMemory", message, asked)
        return
    blocks = (block_bytes(ctx.facts, kv, ctx.role(role).parallelism, device) for role in ctx.roles)
    block = max((known for known in blocks if known is not None), default=None)
    if asked.bytes < _SMALLEST_STAGING or (block is not None and asked.bytes <= block):
        takes = "" if block is None else f", and a block of this model takes {quantity(block)}"
        least = "some hundred Mi (1Mi at least)" if block is None else f"many times that, such as {size(256 * block)}"
        message = f"{asked} of each rank holds no block of KV{takes}: give it {least}, or 0, which stages nothing"
        yield Fault("spec.transfer.stagingMemory", message, asked)
    for role in ctx.roles:
        limit, need = ctx.role(role).resources.limits.get("memory"), host_memory(ctx.spec, role)
        # Where there are tiers as well, the sum is theirs to tell.
        if limit is None or need.tiers or not need.staging or limit.bytes >= need.staging + CPU_ENGINE_BYTES:
            continue
        message = (
            f"{asked} does not fit into spec.{role}.resources.limits.memory {limit}: {size(CPU_ENGINE_BYTES)} engine"
            f" + {size(need.staging)} staging. Raise the limit to {enough(need.staging + CPU_ENGINE_BYTES)} or stage"
            " less"
        )
        yield Fault("spec.transfer.stagingMemory", message, asked)


def _l2(ctx: Context) -> Iterator[Fault]:
    l2 = ctx.spec.cache.l2
    if l2 is None:
        return
    if l2.type is None and l2.size is None and l2.url is None:
        message = "names no store: set size for a Valkey that is deployed, or type; type none switches it off"
        yield Fault("spec.cache.l2", message)
    if storage.active(ctx) is not None:
        yield from _addresses(l2)
    if l2_type(l2) == "valkey" and l2.size is not None and l2.size.bytes // l2.replicas < SMALLEST_SHARD:
        least = quantity(SMALLEST_SHARD * l2.replicas)
        share = (
            "is less than 64Mi"
            if l2.replicas == 1
            else f"is the size of all {l2.replicas} shards together and leaves less than 64Mi for each of them"
        )
        message = f"{l2.size} {share}: give it {least} at least{', or fewer replicas' * (l2.replicas > 1)}"
        yield Fault("spec.cache.l2.size", message, l2.size)


_OTHERS = {"s3": External("s3://bucket/prefix", paths=True), "mooncake": External("mooncake://host:50051")}


def _addresses(l2: L2) -> Iterator[Fault]:
    kind = l2_type(l2)
    store = EXTERNAL.get((l2.url or "").partition("://")[0]) if kind == "external" else _OTHERS.get(kind)
    form = (store or next(iter(EXTERNAL.values()))).example
    for field, written, way_out, allowed in (
        ("url", l2.url, form, URL_FORMS.get(kind, "")),
        ("endpoint", l2.endpoint, "https://host", ENDPOINT_FORM),
    ):
        # A rule refuses what holds credentials or has another form, whatever else is wrong with it.
        if written is None or "@" in written or re.search(SECRETS, written) or not re.search(allowed, written):
            continue
        if store is not None and field == "url":
            problem = addresses.refusal(written, store)
            way_out += ", or with ?bytes=5000000" * ("?bytes=" in (problem or ""))
        else:
            problem = addresses.parse(written).problem
        if problem:
            yield Fault(f"spec.cache.l2.{field}", f"{addresses.shown(written)} {problem}: write it as {way_out}")


def _two_buckets(ctx: Context) -> Iterator[Fault]:
    """One container has one set of bucket credentials: the model's and the store's must be the same Secret."""
    model, l2 = ctx.spec.model, ctx.spec.cache.l2
    if l2 is None or l2_type(l2) != "s3" or not model.uri.startswith("s3://"):
        return
    if l2.secret_ref is not None and model.secret_ref is not None and l2.secret_ref != model.secret_ref:
        message = f"{l2.secret_ref} differs from spec.model.secretRef {model.secret_ref}: an engine has one set of keys"
        yield Fault("spec.cache.l2.secretRef", message, l2.secret_ref)


def _connectors(ctx: Context) -> Iterator[Fault]:
    names = [connector.name for connector in ctx.spec.cache.connectors]
    for index, name in enumerate(names):
        path = f"spec.cache.connectors[{index}].name"
        if not known(name):
            near = suggestion(name, (*MODULES, *UPSTREAM_CONNECTORS))
            message = f"{name} is neither a connector of ours nor one that vLLM registers{near}"
            yield Fault(path, message, name)
        elif name == "MultiConnector":
            yield Fault(path, "MultiConnector holds the others and cannot be one of them: remove it", name)
    if not ctx.disaggregated:
        return
    chosen = weights(ctx.spec)
    above = [name for name, weight in chosen.items() if name != NIXL and weight >= chosen[NIXL]]
    if above:
        # The one that is written: NIXL's own, or the first of those that are above its default.
        blamed = names.index(NIXL) if NIXL in names else min(names.index(name) for name in above if name in names)
        highest = max(chosen[name] for name in above)
        way_out = (
            f"remove the entry of {NIXL}, whose default is {NIXL_WEIGHT}"
            if NIXL in names and highest < NIXL_WEIGHT
            else f"give {', '.join(above)} less"
        )
        message = (
            f"{chosen[names[blamed]]}: NixlConnector's weight {chosen[NIXL]} must be the highest, above "
            f"{', '.join(above)}, or decode leaves the KV that prefill holds for it and may recompute: {way_out}"
        )
        yield Fault(f"spec.cache.connectors[{blamed}].weight", message, str(chosen[names[blamed]]))


def _hybrid(ctx: Context) -> Iterator[Fault]:
    asked, several = ctx.spec.engine.kv.hybrid, ctx.facts.several_groups
    without = [name for name in tier_children(ctx.spec) if not supports_hybrid(name)]
    if without and (asked == "enabled" or (asked == "auto" and ctx.facts.kind == "recurrent")):
        yield Fault(
            "spec.engine.kv.hybrid",
            f"{', '.join(without)} does not support vLLM's hybrid memory allocator (HMA), and one such child turns it "
            "off for the whole engine: set it to disabled where the model allows that, or drop the connector from "
            "spec.cache.connectors",
            asked,
        )
    if asked == "disabled" and ctx.facts.kind == "recurrent":
        yield Fault("spec.engine.kv.hybrid", "a model with recurrent layers does not run without it: use auto", asked)
    if ctx.spec.transfer.on_failure == "recompute" and several:
        message = f"recompute corrupts models with several cache groups (this one: {ctx.facts.kind}): use fail"
        yield Fault("spec.transfer.onFailure", message, "recompute")
