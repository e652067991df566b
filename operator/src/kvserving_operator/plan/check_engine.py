"""Checks of versions, model, parallelism, replicas and router, beyond the rules of the API."""

from __future__ import annotations

from collections.abc import Iterator

from ..api.faults import Fault
from ..api.parse import join
from ..api.types import quoted
from ..api.v1alpha1 import KVSettings, RoleName
from ..engines import catalog
from ..memory import ranks_per_pod
from ..routers import ROUTERS
from . import scaling
from .context import Context

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


def faults(ctx: Context) -> Iterator[Fault]:
    """Faults in the shape of the service: engine, roles, router."""
    yield from _version(ctx)
    yield from kv_type(ctx.spec.engine.kv, ctx.build)
    yield from _model(ctx)
    yield from _parallelism(ctx)
    yield from _replicas(ctx)
    yield from _router(ctx)


def _version(ctx: Context) -> Iterator[Fault]:
    build, kvcached = ctx.build, ctx.spec.kvcached.enabled
    held, stated = catalog.held_version(build.image), ctx.spec.engine.version
    if stated is not None and held not in (None, stated):
        message = (
            f"{build.image} holds vLLM {held}, and spec.engine.version is {stated}: name an image of that version, or "
            "leave one of both out"
        )
        yield Fault("spec.engine.image", message, build.image)
        return
    if not build.supported:
        oldest = catalog.text(catalog.OLDEST)
        message = f"vLLM {build.version} is older than {oldest}, the oldest that works: use a newer one"
        yield Fault(ctx.version_field, message, build.version)
        return
    if kvcached and not ctx.cpu and not build.kvcached_supported:
        newest = catalog.text(catalog.NEWEST_KVCACHED)
        message = (
            f"kvcached {catalog.KVCACHED_VERSION} does not run on vLLM {build.version}: "
            f"the newest version it supports is {newest}. Set spec.engine.version to it or leave it out"
        )
        yield Fault("spec.kvcached.enabled", message, "true")
    for index, variable in enumerate(ctx.spec.engine.env):
        if not kvcached or variable.name != RUNNER or variable.value is None:
            continue
        if build.kvcached_runner in (None, variable.value):
            continue
        needed = "V2" if build.kvcached_runner == "1" else "V1"
        message = f"kvcached needs the {needed} model runner on vLLM {build.version}: remove {RUNNER}"
        yield Fault(f"spec.engine.env[{index}]", message, variable.value)
    if ctx.facts.kind == "recurrent" and build.parts < (0, 24, 0):
        yield Fault(ctx.version_field, f"models with recurrent layers need vLLM 0.24 or newer, not {build.version}")


def kv_type(kv: KVSettings, build: catalog.EngineBuild) -> Iterator[Fault]:
    """A fault where the engine is known to take no KV of that type."""
    taken = build.kv_dtypes
    if taken is not None and kv.dtype not in taken:
        where = " on a CPU" if build.device == "cpu" else ""
        message = f"{quoted(kv.dtype)} is no type of KV of vLLM {build.version}{where}: use {', '.join(taken)}"
        yield Fault("spec.engine.kv.dtype", message, kv.dtype)


def _model(ctx: Context) -> Iterator[Fault]:
    model = ctx.spec.model
    for index, lora in enumerate(model.loras):
        # A rule refuses the name that the model has in spec.model.name.
        if model.name is None and lora.name == model.served_name:
            message = f"{quoted(lora.name)} is the model's own name, by spec.model.uri: requests could not choose; "
            message += "rename the adapter, or give the model a name (spec.model.name)"
            yield Fault(f"spec.model.loras[{index}].name", message, lora.name)
        # A rule refuses addresses with credentials, which must not be shown.
        if lora.uri.startswith("s3://") and "@" not in lora.uri:
            message = f"{lora.uri!r}: vLLM loads no adapters from a bucket; use hf:// or pvc://"
            yield Fault(f"spec.model.loras[{index}].uri", message, lora.uri)


def _parallelism(ctx: Context) -> Iterator[Fault]:
    for role in ctx.roles:
        section = ctx.role(role)
        devices = ranks_per_pod(ctx.spec, role)
        yield from _nodes(ctx, role)
        if ctx.disaggregated and section.parallelism.pipeline > 1:
            message = (
                f"{section.parallelism.pipeline}: NixlConnector, by which decode fetches from prefill, knows no stages "
                "of layers: use 1 and a larger tensor, or leave out spec.prefill"
            )
            yield Fault(f"spec.{role}.parallelism.pipeline", message, str(section.parallelism.pipeline))
        limit = section.resources.limits.get("nvidia.com/gpu")
        if ctx.cpu and limit is not None:
            message = "names GPUs, but spec.engine.device is cpu: remove it or change the device"
            yield Fault(f"spec.{role}.resources.limits", message, str(limit))
        elif limit is not None and limit.value == limit.value.to_integral_value() and limit.value != devices:
            path = join(f"spec.{role}.resources.limits", "nvidia.com/gpu")
            each = f" in each of {section.nodes} pods" if section.nodes > 1 else ""
            yield Fault(path, f"{limit} differs from spec.{role}.parallelism, which needs {devices}{each}", str(limit))
    if ctx.spec.prefill is not None:
        yield from _replicated_heads(ctx, ctx.spec.prefill.parallelism.tensor, ctx.spec.decode.parallelism.tensor)


def _nodes(ctx: Context, role: RoleName) -> Iterator[Fault]:
    nodes, path = ctx.role(role).nodes, f"spec.{role}.nodes"
    if nodes == 1:
        return
    if ctx.site.local:
        yield Fault(
            path, f"{nodes}: this machine is one node: set it to 1, or apply the object to a cluster", str(nodes)
        )


def _replicated_heads(ctx: Context, prefill: int, decode: int) -> Iterator[Fault]:
    facts = ctx.facts
    if facts.kv_heads is None or facts.latent or facts.kind == "recurrent":
        return
    if prefill > decode and prefill > facts.kv_heads:
        yield Fault(
            "spec.prefill.parallelism.tensor",
            f"{prefill} ranks hold copies of the model's {facts.kv_heads} KV heads, and NIXL cannot transfer copies "
            f"to fewer ranks: spec.decode.parallelism.tensor is {decode}. Use at most {facts.kv_heads} for prefill, "
            f"or at least {prefill} for decode",
            str(prefill),
        )


def _replicas(ctx: Context) -> Iterator[Fault]:
    """Replicas that follow from defaults; rules see only those that are written, and bounds that exclude each other."""
    prefill, decode = ctx.spec.prefill, ctx.spec.decode
    if prefill is None:
        return
    if prefill.autoscaling is not None or decode.autoscaling is not None:
        yield from _out_of_reach(ctx)
    elif prefill.replicas is None or decode.replicas is None:
        counts = (count if count is not None else 1 for count in (prefill.replicas, decode.replicas))
        yield from _ratio(ctx, *counts)


def _out_of_reach(ctx: Context) -> Iterator[Fault]:
    """A ratio that no numbers within the roles' bounds can meet."""
    ratio = ctx.spec.ratio
    prefill, decode = (scaling.bounds(role, ctx.role(role)) for role in ctx.roles)
    if ratio is None or not prefill.least or not decode.least:
        return
    if ratio.min is not None and prefill.most * ratio.min.terms[1] < decode.least * ratio.min.terms[0]:
        text = f"{ratio.min} is out of reach: {prefill.most} prefill engines at most, {decode.least} decode at least"
        yield Fault("spec.ratio.min", text, str(ratio.min))
    if ratio.max is not None and prefill.least * ratio.max.terms[1] > decode.most * ratio.max.terms[0]:
        text = f"{ratio.max} is out of reach: {prefill.least} prefill engines at least, {decode.most} decode at most"
        yield Fault("spec.ratio.max", text, str(ratio.max))


def _ratio(ctx: Context, prefill: int, decode: int) -> Iterator[Fault]:
    ratio = ctx.spec.ratio
    if ratio is None or not prefill or not decode:
        return
    if ratio.min is not None and ratio.max is not None:
        (low, low_decode), (high, high_decode) = ratio.min.terms, ratio.max.terms
        if low * high_decode > high * low_decode:
            return
    if ratio.min is not None and prefill * ratio.min.terms[1] < decode * ratio.min.terms[0]:
        yield Fault("spec.ratio.min", f"{ratio.min} is above the replicas {prefill}:{decode}", str(ratio.min))
    if ratio.max is not None and prefill * ratio.max.terms[1] > decode * ratio.max.terms[0]:
        yield Fault("spec.ratio.max", f"{ratio.max} is below the replicas {prefill}:{decode}", str(ratio.max))


def _router(ctx: Context) -> Iterator[Fault]:
    router = ctx.spec.router
    kind = ROUTERS.get(router.type)
    if kind is None:
        return
    if not kind.knows_adapters and ctx.spec.model.loras:
        others = " or ".join(other.name for other in ROUTERS.values() if other.knows_adapters)
        message = (
            f"{kind.name} answers 404 for the name of every LoRA adapter in spec.model.loras: use {others}, "
            "or leave the adapters out"
        )
        yield Fault("spec.router.type", message, kind.name)
    if not kind.weighs_load and router.policy == "powerOfTwo":
        others = " or ".join(other.name for other in ROUTERS.values() if other.weighs_load)
        message = f"{kind.name} polls a load that vLLM does not serve: use cacheAware or roundRobin, or router {others}"
        yield Fault("spec.router.policy", message, "powerOfTwo")
