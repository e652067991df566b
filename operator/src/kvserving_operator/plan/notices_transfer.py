"""What a user should know of staged transfers and of kvcached that is no fault."""

from __future__ import annotations

from ..engines import arguments
from ..profile import SPECULATION
from ..reasons import Reason
from .context import Context
from .types import Notice

STAGING, KVCACHED = "spec.transfer.stagingMemory", "spec.kvcached.enabled"
_SLEEP = "--enable-sleep-mode"


def notices(ctx: Context) -> tuple[Notice, ...]:
    """Notices of both, in a fixed order."""
    return (*_staging(ctx), *_kvcached(ctx))


def _staging(ctx: Context) -> list[Notice]:
    asked = ctx.spec.transfer.staging_memory
    if not asked.bytes:
        return []
    why = "there is no spec.prefill, so that nothing is transferred" if not ctx.disaggregated else _not_staged(ctx)
    if why:
        message = f"{asked} does nothing here: {why}. Leave it out, or set it to 0."
        return [Notice(Reason.SETTING_WITHOUT_EFFECT, STAGING, message)]
    if ctx.cpu:
        return []
    message = "staged transfers were proved on CPU engines and between two GPUs of one host, not over a network: "
    message += "compare answers and transfer times on your GPUs before you rely on them."
    return [Notice(Reason.EXPERIMENTAL, STAGING, message)]


def _not_staged(ctx: Context) -> str:
    """Why the engines of both roles stage no transfer, however large the pool; empty where nothing is known of that."""
    if ctx.spec.prefill is None:
        return ""
    prefill, decode = ctx.spec.prefill.parallelism.tensor, ctx.spec.decode.parallelism.tensor
    if prefill != decode:
        return (
            f"spec.prefill.parallelism.tensor is {prefill}, spec.decode.parallelism.tensor {decode}, and roles that "
            "are divided differently stage nothing"
        )
    if ctx.several_groups:
        kind = f"(this one: {ctx.facts.kind})"
        return f"transfers of models with several cache groups {kind} are not staged"
    for flag in arguments.parse((*ctx.spec.engine.args, *ctx.spec.prefill.args)):
        name = arguments.positive(flag.name)
        if arguments.stands_for(name, SPECULATION):
            return f"a prefill engine with {flag.name} stages nothing, as a draft's KV comes after the step's own"
        if flag.name == name and arguments.stands_for(name, (_SLEEP,)):
            return f"a prefill engine with {flag.name} stages nothing, as the pool would be put to sleep"
    return ""


def _kvcached(ctx: Context) -> list[Notice]:
    kvcached = ctx.spec.kvcached
    if not kvcached.enabled:
        if kvcached.max_cached_tokens is None:
            return []
        message = f"{kvcached.max_cached_tokens} does nothing here: spec.kvcached.enabled is false. Set that to true, "
        message += "or leave this out."
        return [Notice(Reason.SETTING_WITHOUT_EFFECT, "spec.kvcached.maxCachedTokens", message)]
    if not ctx.disaggregated:
        message = "kvcached is experimental: compare answers and first tokens with it off before you rely on it."
        return [Notice(Reason.EXPERIMENTAL, KVCACHED, message)]
    message = "P/D transfer under kvcached is experimental: check TransferVerified and the transfer rate."
    found = [Notice(Reason.EXPERIMENTAL, KVCACHED, message)]
    why = _not_staged(ctx)
    if ctx.spec.transfer.staging_memory.bytes and not why:
        return found
    slow = "NIXL reads memory that kvcached maps some 500 times slower than other memory"
    lease = f"A read that outlasts spec.transfer.lease ({ctx.spec.transfer.lease}) is not used"
    if why:
        message = f"true: {slow}, and staging, which avoids that, does nothing here: {why}. {lease}: set that to four "
        message += f"times what the longest takes and some seconds more, or {KVCACHED} to false."
        return [*found, Notice(Reason.EXPERIMENTAL, KVCACHED, message)]
    message = f"0 under kvcached: {slow}; staging transfers avoid that: set it to 512Mi or more. {lease}: without "
    message += "staging set that to four times what the longest takes and some seconds more."
    return [*found, Notice(Reason.EXPERIMENTAL, STAGING, message)]
