"""Whether the engine has kernels for the tokens per block that the object asks for."""

from __future__ import annotations

from collections.abc import Iterator

from ..api.faults import Fault
from .context import Context


def faults(ctx: Context) -> Iterator[Fault]:
    """A fault where the engine is known to end over ``spec.engine.kv.blockSize`` after it has loaded the model.

    Of a model with latent attention vLLM takes its own size on a CPU, of one with recurrent layers it aligns it.
    """
    asked, step, facts = ctx.spec.engine.kv.block_size, ctx.build.block_multiple, ctx.facts
    if asked == "auto" or step is None or facts.latent or facts.kind not in ("attention", "slidingWindow"):
        return
    if odd := int(asked) % step:
        near = [size for size in (asked - odd, asked - odd + step) if size]
        message = (
            f"{asked} is no multiple of {step}, and vLLM {ctx.build.version} attends on a CPU to no others: "
            f"use {' or '.join(map(str, near))}, or auto"
        )
        yield Fault("spec.engine.kv.blockSize", message, str(asked))
