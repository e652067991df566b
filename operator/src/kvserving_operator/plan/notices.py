"""What a user should know of a plan that is no fault."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from ..api.stores import EXTERNAL
from ..connectors import l2_type, roles_with_l2
from ..engines import catalog
from ..reasons import Reason
from ..routers import ROUTERS
from . import addresses, notices_args, notices_transfer, ports, template
from .context import Context
from .types import Notice


def notices(ctx: Context) -> tuple[Notice, ...]:
    """Every notice of a plan, in a fixed order."""
    return (
        *_engine(ctx), *notices_transfer.notices(ctx), *notices_args.notices(ctx), *_files(ctx), *_facts(ctx),
        *_tiers(ctx), *_router(ctx), *_network(ctx), *_later(ctx), *_one_machine(ctx),
    )  # fmt: skip


def of_empty(paths: Iterable[str]) -> tuple[Notice, ...]:
    """What fields that are given without a value do: they count as left out, as they do in a cluster."""
    found = []
    for path in paths:
        if path == "spec.prefill":
            does = "one engine serves alone and no KV is transferred; write prefill: {} for a prefill role by defaults"
        elif path == "spec.decode":
            does = "it has its defaults; write decode: {} for them, or give it fields"
        else:
            does = "its default holds; give it a value, or remove it"
        found.append(Notice(Reason.EMPTY_FIELD, path, f"has no value, which counts as left out: {does}."))
    return tuple(found)


def _engine(ctx: Context) -> list[Notice]:
    build, found = ctx.build, []
    if build.assumed:
        message = f"the tag of {build.image} names no version; {build.version} is assumed: set spec.engine.version."
        found.append(Notice(Reason.ENGINE_VERSION_ASSUMED, "spec.engine.image", message))
    if not build.tested:
        tested = catalog.TESTED_CPU if ctx.cpu else catalog.TESTED_GPU
        names = ", ".join(catalog.text(version) for version in sorted(tested))
        message = f"vLLM {build.version} was not tested on device {build.device}; tested: {names}."
        found.append(Notice(Reason.ENGINE_UNTESTED, ctx.version_field, message))
    if build.reduced:
        full = catalog.text(catalog.FULL_SUPPORT)
        message = f"the connector has reduced function on vLLM {build.version}; all of it needs {full} or newer."
        if ctx.disaggregated:
            message += (
                f" A read that takes longer than spec.transfer.lease ({ctx.spec.transfer.lease}) may bring another"
            )
            message += " prompt's KV here, and the answer is wrong: elsewhere it is not used."
        found.append(Notice(Reason.REDUCED_ENGINE_SUPPORT, ctx.version_field, message))
    return found


def _files(ctx: Context) -> list[Notice]:
    """Files of the machine where the object was written: a cluster's pods have them by a mount or image only."""
    model, found = ctx.spec.model, []
    if ctx.site.local:
        return []
    addresses = [("spec.model.uri", model.uri)]
    addresses += [(f"spec.model.loras[{index}].uri", lora.uri) for index, lora in enumerate(model.loras)]
    for path, uri in addresses:
        file = uri.removeprefix("file://")
        if file == uri:
            continue
        without = [role for role in ctx.roles if not template.holds_path(ctx.role(role).template, file)]
        if without:
            message = (
                f"{uri} is a path inside the {' and '.join(without)} engines, and no volume is mounted there: unless "
                "spec.engine.image holds it, put it on a claim and use pvc://claim/path, or use hf:// or s3://."
            )
            found.append(Notice(Reason.MODEL_NOT_MOUNTED, path, message))
    return found


def _facts(ctx: Context) -> list[Notice]:
    facts, skipped = ctx.facts, []
    if facts.kv_heads is None and ctx.disaggregated:
        skipped.append("replicated KV heads (kvHeads)")
    if facts.kind is None:
        skipped.append("cache groups, hybrid memory and state layout (kind)")
    if not skipped:
        return []
    message = f"nothing is known about {ctx.spec.model.uri}; not checked: {'; '.join(skipped)}."
    return [Notice(Reason.MODEL_FACTS_UNKNOWN, "spec.model.facts", f"{message} State them in spec.model.facts.")]


def _tiers(ctx: Context) -> list[Notice]:
    if l2_type(ctx.spec.cache.l2) == "external":
        return _store_folder(ctx)
    if l2_type(ctx.spec.cache.l2) != "s3":
        return []
    message = "the operator cannot bound a bucket: give it a lifecycle rule that removes old objects."
    return [Notice(Reason.STORE_NOT_BOUNDED, "spec.cache.l2.type", message)]


def _store_folder(ctx: Context) -> list[Notice]:
    url = ctx.spec.cache.l2.url or "" if ctx.spec.cache.l2 is not None else ""
    store = EXTERNAL.get(url.partition("://")[0])
    if store is None or not store.folder or ctx.site.local:
        return []
    path = posixpath.normpath(addresses.parse(url, folder=True).path)
    roles = roles_with_l2(ctx.spec)
    without = [role for role in ctx.roles if role in roles and not template.holds_path(ctx.role(role).template, path)]
    if not without:
        return []
    message = (
        f"{path} is a path inside the {' and '.join(without)} engines, and no volume is mounted there: mount one in "
        f"{' and '.join(f'spec.{role}.template' for role in without)}, or nothing is stored."
    )
    return [Notice(Reason.STORE_NOT_MOUNTED, "spec.cache.l2.url", message)]


def _router(ctx: Context) -> list[Notice]:
    kind = ROUTERS.get(ctx.spec.router.type)
    if kind is None or kind.checks_clients:
        return []
    message = f"{kind.name} checks no client's key and leaves its worker endpoints open on the same port: "
    message += "let only a gateway or trusted pods reach it."
    path = "spec.router.apiKeySecretRef" if ctx.spec.router.api_key_secret_ref else "spec.router.type"
    return [Notice(Reason.ROUTER_OPEN, path, message)]


def _network(ctx: Context) -> list[Notice]:
    on_host = [role for role in ctx.roles if ports.host_network(ctx.role(role))]
    if ctx.site.local or not on_host or not ctx.spec.network_policy.enabled:
        return []
    message = f"{' and '.join(on_host)} engines are on their host's network, where no policy covers them: whoever "
    message += "reaches the host reaches their side channels. "
    if len(on_host) < len(ctx.roles):
        message += "The policy of the other role selects pods and lets it reach no host, so that no KV moves where "
        message += "policies are enforced: put both roles there, or set spec.networkPolicy.enabled to false."
    else:
        message += "Protect them by a firewall of the hosts."
    return [Notice(Reason.POLICY_WITHOUT_EFFECT, "spec.networkPolicy.enabled", message)]


def _later(ctx: Context) -> list[Notice]:
    spec, found = ctx.spec, []
    gateway = spec.router.gateway
    if gateway is not None and gateway.inference_pool:
        found.append(_not_yet("spec.router.gateway.inferencePool", "an InferencePool is not created yet"))
    if spec.scheduling.gang != "none":
        found.append(_gang(ctx))
    return found


def _one_machine(ctx: Context) -> list[Notice]:
    """What is set and does nothing on one machine; what an object says of its cluster alone is no mistake there."""
    if not ctx.site.local:
        return []
    router, found = ctx.spec.router, []
    for role in ctx.roles:
        if ctx.role(role).replicas == 0 and ctx.role(role).autoscaling is None:
            found.append((f"spec.{role}.replicas", "with 0 no request is answered, so `kvserving up` refuses to start"))
        if ctx.role(role).autoscaling is not None:
            found.append((f"spec.{role}.autoscaling", "nothing scales there: the fewest replicas run"))
    caches = (("model.cache", ctx.spec.model.cache), ("cache.l2", ctx.spec.cache.l2))
    for section, storage in caches:
        if storage is not None and storage.storage_class is not None:
            found.append((f"spec.{section}.storageClass", f"{storage.storage_class}: claims are folders there"))
    if ctx.disaggregated and ctx.spec.transfer.rdma.mode == "required":
        found.append(("spec.transfer.rdma.mode", "required: engines reach each other by memory, NVLinks and TCP"))
    if "replicas" in router.model_fields_set and router.replicas > 1:
        found.append(("spec.router.replicas", f"{router.replicas}: one router runs there"))
    if router.service.type != "ClusterIP":
        found.append(("spec.router.service.type", f"{router.service.type}: the router listens where --listen says"))
    if router.gateway is not None:
        found.append(("spec.router.gateway", "there is no gateway: the router is reached at its address"))
    if ctx.spec.scheduling.colocate is not None:
        found.append(("spec.scheduling.colocate", "all engines are on this machine"))
    return [Notice(Reason.NOT_ON_ONE_MACHINE, path, f"for a cluster: {message}.") for path, message in found]


def _gang(ctx: Context) -> Notice:
    path, chosen = "spec.scheduling.gang", ctx.spec.scheduling.gang
    spanning = [role for role in ctx.roles if ctx.role(role).nodes > 1]
    if chosen == "auto":
        message = "no scheduler is chosen by itself yet: name volcano or coscheduling; only Volcano's queue is set"
    elif not spanning:
        message = "each replica is one pod: the scheduler's name and Volcano's queue are set, no pod group is created"
    elif chosen == "volcano":
        message = (
            f"pods of {' and '.join(spanning)} engines are placed together only where LeaderWorkerSet makes pod "
            "groups: gangSchedulingManagement with schedulerProvider volcano in its own configuration"
        )
    else:
        message = (
            f"no pod group is created for the pods of {' and '.join(spanning)} engines, so that some may be placed and "
            "wait for others: use volcano, for which LeaderWorkerSet makes them"
        )
    return _not_yet(path, message)


def _not_yet(path: str, message: str) -> Notice:
    return Notice(Reason.NOT_IN_THIS_RELEASE, path, f"{message}.")
