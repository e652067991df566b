"""What can be seen from the object alone: faults, notices, and settings that are valid and known to disappoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...amounts import size
from ...api.data_spec import Transfer
from ...api.faults import Fault
from ...api.v1alpha1 import L1, KVServing, KVSettings, RoleName
from ...connectors import l2_type, roles_with_l1
from ...engines import arguments, catalog
from ...kv_size import block_bytes, block_tokens
from ...memory import ranks_per_pod
from ...plan import engine as planned_engine
from ...plan.context import Context, make_context
from ...plan.types import CLUSTER, Notice, Observed, Site
from ...reasons import Reason
from ..facts import ObjectFacts
from ..findings import Finding, Severity, error, info, warning

_MOVING_TAGS = ("latest", "nightly", "main", "dev")
_SHORTEST_LEASE = 10
_PREFIX = "--enable-prefix-caching"
_COMMIT = re.compile(r"[0-9a-f]{40}")

_COMPARE = "compare answers and transfer times with it off before you rely on it, or turn it off"
_NOTICES: dict[Reason, tuple[Severity, str, str]] = {
    Reason.ENGINE_VERSION_ASSUMED: (
        Severity.WARNING,
        "flags are written for a version that the image may not have",
        "set spec.engine.version to the version in the image",
    ),
    Reason.ENGINE_UNTESTED: (
        Severity.INFO,
        "nobody has seen transfers and tiers work in this version",
        "take a tested version, or run your own load on this one before you rely on it",
    ),
    Reason.REDUCED_ENGINE_SUPPORT: (
        Severity.WARNING,
        "parts of the connector are off",
        f"take vLLM {catalog.text(catalog.FULL_SUPPORT)} or newer, or leave it where what is left is enough",
    ),
    Reason.FLAG_UNKNOWN: (
        Severity.WARNING,
        "vLLM ends at its start, on a GPU after minutes",
        "correct the argument, or leave it where a plugin in the image, or the version that is really in it, takes it",
    ),
    Reason.STORE_NOT_MOUNTED: (
        Severity.WARNING,
        "the root of engine pods takes no writes, so that nothing is stored",
        "mount a volume at the path, or above it, by the template of each role that is named",
    ),
    Reason.MODEL_NOT_MOUNTED: (
        Severity.WARNING,
        "engines end at start when the path is not in their pod",
        "take pvc://claim/path, hf:// or s3://, or mount the folder by the template of each role; `--site local` looks "
        "at the file for this machine",
    ),
    Reason.MODEL_FACTS_UNKNOWN: (
        Severity.INFO,
        "a combination that vLLM refuses shows at the first transfer only",
        "state kind and kvHeads of the model's config.json in spec.model.facts",
    ),
    Reason.ROUTER_OPEN: (
        Severity.WARNING,
        "whoever reaches the router uses and reconfigures it",
        "set spec.router.type to smg, or let only a gateway or trusted pods reach the router",
    ),
    Reason.POLICY_WITHOUT_EFFECT: (
        Severity.WARNING,
        "side channels and transfers have no authentication",
        "protect the hosts by a firewall, or take the engines off their host's network",
    ),
    Reason.STORE_NOT_BOUNDED: (
        Severity.WARNING,
        "the bucket grows without end",
        "give the bucket a lifecycle rule that removes old objects",
    ),
    Reason.SETTING_WITHOUT_EFFECT: (
        Severity.WARNING,
        "who set it counts on what does not happen",
        "do what the sentence says",
    ),
    Reason.NOT_ON_ONE_MACHINE: (
        Severity.INFO,
        "`kvserving up` runs without it",
        "keep it where the same object is applied to a cluster, or leave it out",
    ),
    Reason.EXPERIMENTAL: (Severity.WARNING, "it may fail in ways that no test of ours has seen", _COMPARE),
}
_WITHOUT_EFFECT = (
    Severity.INFO,
    "it does nothing in this release",
    "leave the field out, or keep it for a later release",
)


def _costs(facts: ObjectFacts, fault: Fault) -> tuple[str, str]:
    """What a fault costs, and the way out."""
    change = "change the field as the sentence says; `validate` lists all faults"
    if facts.live is not None:
        return "the operator leaves everything as it is while the spec is invalid", change
    if fault.path:
        return "neither `kvserving up` nor an operator makes anything of it while the spec is invalid", change
    return "there is no object to look at", "name a file that holds one KVServing, or `-` and pipe it in"


def findings(facts: ObjectFacts) -> Iterator[Finding]:
    """Findings about the spec of one object."""
    for fault in facts.faults:
        why, fix = _costs(facts, fault)
        yield error("spec-invalid", fault.path or "the file", fault.message, why=why, fix=fix)
    for what, fix in facts.model:
        yield error("model-files", "spec.model.uri", what, why="`kvserving up` refuses to start with it", fix=fix)
    for what, fix in facts.disks:
        why = "`kvserving up` refuses to start what has no room for its logs and its store"
        yield error("store-room", "this machine's disk", what, why=why, fix=fix)
    for notice in facts.plan.notices if facts.plan is not None else ():
        if not (facts.model and notice.reason is Reason.MODEL_FACTS_UNKNOWN):
            yield _notice(notice)
    if facts.serving is None or facts.faults:
        return
    ctx = make_context(facts.serving, Site("local") if facts.local else CLUSTER, Observed())
    for check in (_image, _weights, _prefix_cache, _lengths, _transfer, _tiers, _network):
        yield from check(ctx)


def _notice(notice: Notice) -> Finding:
    severity, why, fix = _NOTICES.get(notice.reason, _WITHOUT_EFFECT)
    return Finding(severity, f"notice-{notice.reason.value}", notice.path, notice.message, why, fix)


def _image(ctx: Context) -> Iterator[Finding]:
    asked, image = ctx.spec.engine.version, ctx.spec.engine.image
    if image is None:
        return
    tagged = catalog.resolve(version=None, image=image, device=ctx.build.device, kvcached=False)
    if asked is not None and not tagged.assumed and tagged.version != asked:
        yield error(
            "image-version",
            "spec.engine.image",
            f"the image's tag says vLLM {tagged.version}, spec.engine.version {asked}",
            why="flags and connector fields are written for a version that does not run: engines end at start, or the "
            "handshake fails",
            fix=f"set spec.engine.version to {tagged.version}, or take an image of {asked}",
        )
    name, at, _ = image.partition("@")
    tag = name.rsplit("/", 1)[-1].partition(":")[2]
    if not at and (not tag or tag.startswith(_MOVING_TAGS)):
        yield warning(
            "image-moves",
            "spec.engine.image",
            f"{'it has no tag' if not tag else f'the tag {tag} moves'}: nodes may run different engines",
            why="engines of different builds refuse each other's KV, or take it wrongly",
            fix="name a version's tag, best with its digest (@sha256:…)",
        )


def _weights(ctx: Context) -> Iterator[Finding]:
    model = ctx.spec.model
    if not model.uri.startswith("hf://"):
        return
    if model.revision is None or not _COMMIT.fullmatch(model.revision):
        named = "no revision" if model.revision is None else "a branch or tag"
        yield warning(
            "weights-move",
            "spec.model.revision",
            f"{named} is named: an engine that starts later may load other weights than those that run",
            why="vLLM does not compare weights before a transfer, so KV of two checkpoints is mixed without an error",
            fix="name the commit (40 hexadecimal digits) of the model",
        )
    if model.cache is None:
        yield info(
            "weights-downloaded-again",
            "spec.model.cache",
            "each new engine downloads the weights",
            why="restarts and scaling take as long as the download",
            fix="set spec.model.cache.size (a claim that all engines mount) or spec.model.cache.pvc",
        )


def _prefix_cache(ctx: Context) -> Iterator[Finding]:
    for role in ctx.roles:
        section = ctx.role(role)
        flags = arguments.parse((*ctx.spec.engine.args, *section.args))
        off = [f.name for f in flags if f.name != (name := arguments.positive(f.name)) and name == _PREFIX]
        if off:
            yield warning(
                "prefix-cache-off",
                f"spec.{role}.args" if section.args else "spec.engine.args",
                f"{off[0]} switches prefix caching off in {role}",
                why="each turn of a conversation computes its whole prompt again, and tiers in front of it find less",
                fix="remove the flag",
            )


def _lengths(ctx: Context) -> Iterator[Finding]:
    given = {role: _flag(ctx.serving, role, "--max-model-len") for role in ctx.roles}
    if len(set(given.values())) > 1:
        shown = ", ".join(f"{role} {value or 'as the model has it'}" for role, value in given.items())
        yield warning(
            "lengths-differ",
            "spec.decode.args",
            f"--max-model-len differs between the roles: {shown}",
            why="prompts that one role takes are refused by the other, after prefill was paid for and holds their KV",
            fix="move --max-model-len to spec.engine.args",
        )


def _transfer(ctx: Context) -> Iterator[Finding]:
    if not ctx.disaggregated:
        return
    transfer = ctx.spec.transfer
    if not ctx.site.local and not ctx.cpu and not planned_engine.uses_rdma(ctx):
        yield warning(
            "transfer-over-tcp",
            "spec.transfer.rdma",
            "no RDMA device is asked for: KV moves over TCP between nodes",
            why="the KV of a long prompt takes many times as long as over RDMA; between GPUs of one node it moves over "
            "their NVLinks, and by TCP as well where they have none",
            fix="set spec.transfer.rdma.resource to the device plugin's resource, or claimTemplate; "
            "mode: required refuses to run without",
        )
    tls = next((v.value for v in ctx.spec.engine.env if v.name == "UCX_TLS" and v.value), None)
    if tls is not None and not ctx.cpu and not _moves_device_memory(tls):
        yield error(
            "ucx-without-cuda",
            "spec.engine.env[UCX_TLS]",
            f"UCX_TLS={tls} leaves out the CUDA transports",
            why="UCX does not recognise device memory without one, and transfers fail",
            fix="add cuda_copy,cuda_ipc, or remove the variable",
        )
    if transfer.lease.seconds < _SHORTEST_LEASE:
        yield warning(
            "lease-short",
            "spec.transfer.lease",
            f"{transfer.lease}: a transfer that takes longer, or a decode engine that pauses, loses its KV",
            why="decode computes such a prompt again; before vLLM 0.29 the answer is wrong, without an error",
            fix=f"use {_SHORTEST_LEASE}s or more; {Transfer().lease} is the default",
        )
    if transfer.on_failure == "recompute":
        yield info(
            "recompute",
            "spec.transfer.onFailure",
            "decode computes a prompt itself when its KV does not arrive",
            why="decode engines stall for whole prompts, and a broken transfer shows in latency alone",
            fix="watch kvserving:transfer_failures_total, or use fail, which lets the router try another pair",
        )


def _moves_device_memory(tls: str) -> bool:
    """Whether a UCX_TLS has CUDA's transports: those that it names, or with ^ all but those."""
    names = {name.strip() for name in tls.removeprefix("^").split(",")}
    if tls.startswith("^"):
        return not names & {"cuda", "cuda_copy"}
    return "all" in names or any(name.startswith("cuda") for name in names)


def _tiers(ctx: Context) -> Iterator[Finding]:
    l1, l2 = ctx.spec.cache.l1, ctx.spec.cache.l2
    if l1 is not None:
        yield from _longest_prompt(ctx, l1)
    if l1 is not None and l2 is not None and l2_type(l2) in ("valkey", "filesystem") and l2.size is not None:
        usable = l2.size.bytes * l2.max_usage.percent // 100
        if usable < l1.size.bytes:
            yield warning(
                "l2-smaller-than-l1",
                "spec.cache.l2.size",
                f"the store holds {size(usable)}, less than one engine's L1 of {l1.size}",
                why="what it has is in L1 as well: it costs memory and writes, and gives next to nothing",
                fix="make it larger than the L1 of all engines together, or leave cache.l2 out",
            )


def _network(ctx: Context) -> Iterator[Finding]:
    if not ctx.spec.network_policy.enabled:
        yield warning(
            "network-policy-off",
            "spec.networkPolicy.enabled",
            "no network policy is made",
            why="side channels and transfers have no authentication: every pod of the cluster can read KV and stop "
            "engines",
            fix="set it to true, or have your own policies keep others from the engines",
        )


def _longest_prompt(ctx: Context, l1: L1) -> Iterator[Finding]:
    for role in roles_with_l1(ctx.spec):
        kv, device, longest = _kv(ctx, role), ctx.build.device, _longest(ctx, role)
        block = block_bytes(ctx.facts, kv, ctx.role(role).parallelism, device)
        if longest is None or block is None:
            continue
        # L1 is shared out among the ranks of a pod, and each keeps its own part of every token.
        ranks = ranks_per_pod(ctx.spec, role)
        per_token = block * ranks // block_tokens(ctx.facts, kv, device)
        if (held := l1.size.bytes // per_token) < longest:
            over = f", over {ranks} ranks" if ranks > 1 else ""
            yield warning(
                "l1-small",
                "spec.cache.l1.size",
                f"{l1.size} holds {held:,} tokens of {role}'s KV ({per_token:,} bytes each{over}), but the longest "
                f"prompt has {longest:,}",
                why="one long prompt pushes out all others, and is not kept whole itself",
                fix=f"give it several times {size(longest * per_token)}, or leave cache.l1 out",
            )


def _kv(ctx: Context, role: RoleName) -> KVSettings:
    """Settings of the cache, whose type is the model's own where it is left to vLLM and the model is loaded wider."""
    kv = ctx.spec.engine.kv
    wide = kv.dtype == "auto" and _flag(ctx.serving, role, "--dtype") in ("float32", "float")
    return kv.model_copy(update={"dtype": "float32"}) if wide else kv


def _longest(ctx: Context, role: str) -> int | None:
    given = _flag(ctx.serving, role, "--max-model-len")
    return int(given) if given is not None and arguments.is_number(given) else ctx.facts.max_length


def _flag(serving: KVServing, role: str, name: str) -> str | None:
    section = serving.spec.prefill if role == "prefill" else serving.spec.decode
    args: Sequence[str] = (*serving.spec.engine.args, *(section.args if section is not None else ()))
    return arguments.last_value(args, name)
