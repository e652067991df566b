"""What a sizing must know of a model, and where it knows it from. Nothing is guessed: what is missing is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..amounts import big, number
from ..api.faults import Fault, InvalidSpec
from ..api.v1alpha1 import KVSettings, Parallelism
from ..kv_size import block_bytes, block_tokens
from ..model_facts import ModelFacts, common_name, settings
from . import counted
from .figures import Input, parameters
from .published import MODELS, bytes_of_variant

FACT = "--fact"
_UNQUANTIZED = 2.0


@dataclass(frozen=True)
class Given:
    """What the user states beyond ``spec.model.facts``; None where nothing is."""

    parameters: float | None = None
    active: float | None = None
    weights: float | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_token: int | None = None
    state: int | None = None


@dataclass(frozen=True)
class OnDisk:
    """What this machine has of the model: its configuration, and the bytes of its weight files (0: none)."""

    config: Mapping[str, Any]
    weights: int = 0


@dataclass(frozen=True)
class Model:
    """A model as the sizing sees it.

    ``width`` is the size of a query and a value over all heads, ``layers`` those that attend to every token,
    ``sliding`` those that attend to ``window``. ``eight_bits`` tells that its matrices are multiplied as fp8. ``fixed``
    is what a request of any length keeps in bytes: states, and windows at their largest.
    """

    uri: str
    facts: ModelFacts
    kv: KVSettings
    parameters: float
    active: float
    weights: float
    eight_bits: bool
    hidden: int
    heads: int
    width: int
    layers: int
    sliding: int
    window: int
    kv_token: int
    kv_arithmetic: str
    fixed: int
    inputs: tuple[Input, ...]

    def kv_of_rank(self, tensor: int) -> float:
        """Bytes that a token takes in each of ``tensor`` ranks: heads are divided, and copied beyond their number."""
        divided = _token_bytes(self.facts, self.layers, self.kv, tensor)
        if divided is not None and _token_bytes(self.facts, self.layers, self.kv, 1) == self.kv_token:
            return divided
        return self.kv_token / min(tensor, self.facts.kv_heads or 1)

    def tensors(self, most: int) -> tuple[int, ...]:
        """Sizes of tensor parallelism that vLLM accepts: they divide the heads, and the KV heads or are divided."""
        kv_heads = self.facts.kv_heads or 1
        sizes = (2**power for power in range(most.bit_length()))
        return tuple(
            size
            for size in sizes
            if size <= most
            and self.heads % size == 0
            and (self.facts.latent or kv_heads % size == 0 or size % kv_heads == 0)
        )


@dataclass(frozen=True)
class _Known:
    """What one source tells; None where it does not. ``each`` is bytes of a parameter, ``per_head`` a head's width."""

    source: str
    parameters: float | None = None
    active: float | None = None
    weights: float | None = None
    each: float | None = None
    hidden: int | None = None
    heads: int | None = None
    per_head: int | None = None


def resolve(
    uri: str,
    facts: ModelFacts,
    kv: KVSettings,
    *,
    given: Given = Given(),
    disk: OnDisk | None = None,
    quantization: str | None = None,
) -> Model:
    """The model at ``uri`` by what is given, over what is on this machine, over what its publisher says.

    ``quantization`` is vLLM's flag: ``fp8`` makes eight bits of each parameter as it loads. Raises ``InvalidSpec`` that
    names everything that is not known, and how to state it.
    """
    config = settings(disk.config) if disk else {}
    known = _of_disk(disk, config, uri) if disk else _of_publisher(uri)
    if quantization == "fp8":
        known = replace(known, each=1.0, weights=None)
    total = given.parameters or known.parameters
    active = given.active or (known.active if given.parameters is None else None) or total
    counted_bytes = total * known.each if total and known.each else None
    # Of two figures that do not fit together, the larger one errs on the side of devices that do.
    disputed = _disputed(known.weights, counted_bytes, known.each)
    found = max(known.weights or 0, counted_bytes or 0) if disputed else known.weights or counted_bytes
    weights = given.weights or found
    hidden, heads = given.hidden or known.hidden, given.heads or known.heads
    kept = _kept(facts, config, given)
    token = given.kv_token or (_token_bytes(facts, kept.full, kv, 1) if kept else None)
    wanted = {"parameters": total, "weights": weights, "hidden": hidden, "heads": heads}
    shape = {"kind": facts.kind, "layers": facts.layers, "kvHeads": facts.kv_heads, "headDim": facts.head_dim}
    missing = [fact for fact, value in {**wanted, **shape}.items() if not value]
    if None not in shape.values() and not token:
        missing.append("kvBytesPerToken")
    if None not in shape.values() and kept is None:
        missing.append("stateBytes")
    if missing or not (total and active and weights and hidden and heads and token and kept and facts.head_dim):
        raise _unknown(uri, missing, disk, kv)
    if active > total:
        message = f"activeParameters {number(active)} is above parameters {number(total)}: a token uses a part of them"
        raise InvalidSpec([Fault(FACT, message)])
    per_layer = _token_bytes(facts, 1, kv, 1) or 0
    windows = 0 if given.kv_token else kept.sliding * kept.window * per_layer
    model = Model(
        uri=uri,
        facts=facts,
        kv=kv,
        parameters=total,
        active=active,
        weights=weights,
        eight_bits=known.each == 1.0,
        hidden=hidden,
        heads=heads,
        width=heads * (known.per_head or 2 * facts.head_dim),
        layers=kept.full,
        sliding=kept.sliding,
        window=kept.window,
        kv_token=token,
        kv_arithmetic="" if given.kv_token else _kv_arithmetic(facts, kept.full, per_layer),
        fixed=windows + kept.state_bytes,
        inputs=(),
    )
    caution = "" if given.weights else disputed
    return replace(model, inputs=tuple(_inputs(model, known, given, kept, caution)))


def _of_publisher(uri: str) -> _Known:
    name, variant = common_name(uri)
    published = MODELS.get(name or "")
    if published is None:
        return _Known("")
    return _Known(
        source=f"model card of {name}",
        parameters=published.billions * 1e9,
        active=published.active * 1e9,
        each=bytes_of_variant(variant) or published.bytes_each,
        hidden=published.hidden,
        heads=published.heads,
        per_head=published.width,
    )


def _of_disk(disk: OnDisk, config: Mapping[str, Any], uri: str) -> _Known:
    """What the files tell; of a common model that is not counted by its matrices, the number of its publisher."""
    each = counted.bytes_each(config)
    total = counted.parameters(config) or _of_publisher(uri).parameters
    total = total or (disk.weights / each if disk.weights and each else None)
    idle = counted.idle_parameters(config)
    if total and idle and idle >= total:
        # Files that hold less than the experts are not all of them.
        total = None
    return _Known(
        source="config.json and weight files here" if disk.weights else "config.json here",
        parameters=total,
        active=total - idle if total and idle is not None else None,
        weights=disk.weights or None,
        each=each,
        hidden=counted.whole(config, "hidden_size"),
        heads=counted.whole(config, "num_attention_heads"),
        per_head=_per_head(config),
    )


def _disputed(found: float | None, counted_bytes: float | None, each: float | None) -> str:
    """Why the bytes of the files here are doubted; empty where they fit the number of parameters."""
    if not found or not counted_bytes or not each:
        return ""
    # Of quantized models some parts stay as they were, and the scales of others are not counted.
    most = 1.25 if each >= _UNQUANTIZED else 2.0
    if 1 / most <= found / counted_bytes <= most:
        return ""
    return (
        f"the files here tell {big(found, 'B')}, and the parameters at {number(each)} bytes each take "
        f"{big(counted_bytes, 'B')}: the larger is taken"
    )


def _kept(facts: ModelFacts, config: Mapping[str, Any], given: Given) -> counted.Layers | None:
    """Layers by what they keep. Without a configuration, windows are counted as if they kept every token."""
    if facts.layers is None or facts.kind is None:
        return None
    found = counted.layers(config) if config and facts.kind != "attention" else None
    if found is not None:
        return found if given.state is None else replace(found, state_bytes=given.state)
    if facts.kind == "recurrent" and (given.kv_token is None or given.state is None):
        return None
    return counted.Layers(facts.layers, state_bytes=given.state or 0)


def _token_bytes(facts: ModelFacts, layers: int, kv: KVSettings, tensor: int) -> int | None:
    """Bytes of a token in one rank, if its KV is kept by ``layers`` layers."""
    attending = replace(facts, kind="attention", layers=layers)
    block = block_bytes(attending, kv, Parallelism(tensor=tensor), "gpu")
    return None if block is None else block // block_tokens(attending, kv, "gpu")


def _per_head(config: Mapping[str, Any]) -> int | None:
    """Size of a query and a value of a head where they differ, as with latent attention."""
    parts = [counted.whole(config, name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
    return None if None in parts else sum(part or 0 for part in parts)


def _kv_arithmetic(facts: ModelFacts, layers: int, per_layer: int) -> str:
    numbers = facts.head_dim if facts.latent else 2 * (facts.kv_heads or 0) * (facts.head_dim or 0)
    each = number(per_layer / numbers) if numbers else "0"
    if facts.latent:
        return f"{layers} layers x {facts.head_dim} x {each} bytes"
    return f"{layers} layers x 2 x {facts.kv_heads} heads x {facts.head_dim} x {each} bytes"


def _unknown(uri: str, missing: list[str], disk: OnDisk | None, kv: KVSettings) -> InvalidSpec:
    where = "its configuration does not tell" if disk else "its configuration is not on this machine, and no table has"
    options = " ".join(f"{FACT} {name}=…" for name in missing)
    download = "" if disk else "download the model, or "
    width = f" (KV of type {kv.dtype})" if "kvBytesPerToken" in missing and kv.dtype != "auto" else ""
    message = f"{uri}: {where} {', '.join(missing)}{width}: {download}state them: {options}"
    return InvalidSpec([Fault("MODEL", message, uri)])


def _inputs(model: Model, known: _Known, given: Given, kept: counted.Layers, doubt: str) -> Iterator[Input]:
    def entry(name: str, text: str, stated: bool, fact: str, source: str = known.source) -> Input:
        return Input(name, text, "given" if stated else "specified", FACT if stated else source, f"{FACT} {fact}=…")

    yield entry("parameters", parameters(model.parameters), given.parameters is not None, "parameters")
    text = "all" if model.active == model.parameters else parameters(model.active)
    if given.active is None and (given.parameters is not None or known.active is None):
        dense = known.active is not None and known.active == known.parameters
        caution = "" if dense else "all are counted, an upper bound, as it is not known whether the model has experts"
        replaced = f"{FACT} activeParameters=…"
        yield Input("parameters of a token", text, "assumed", "no experts", replaced, caution)
    elif model.active != model.parameters:
        yield entry("parameters of a token", text, given.active is not None, "activeParameters")
    source = known.source if known.weights else f"{number(known.each or 0)} bytes each; {known.source}"
    weights = entry("weights", big(model.weights, "B"), given.weights is not None, "weights", source)
    yield replace(weights, basis="assumed", source="the larger of two figures", caution=doubt) if doubt else weights
    facts = model.facts
    heads = "one latent vector" if facts.latent else f"{facts.kv_heads} KV heads"
    source = "table of common models" if facts.source == "table" else known.source
    shape = f"{facts.layers} layers, {heads} of {facts.head_dim}"
    yield entry("shape", shape, facts.source == "stated", "layers", source)
    if given.kv_token is not None:
        yield entry("KV of a token", big(model.kv_token, "B"), True, "kvBytesPerToken")
    elif facts.kind == "slidingWindow" and not kept.sliding:
        text = "kept by all layers, at most"
        caution = "counted for all layers, an upper bound, as the windows of the model are not known"
        yield Input("KV of a token", text, "assumed", "windows not known", f"{FACT} kvBytesPerToken=…", caution)
    if kept.state_bytes:
        yield entry("states of a request", big(kept.state_bytes, "B"), given.state is not None, "stateBytes")
    if facts.max_length is None:
        caution = "not known, so that it is left open whether engines can hold it, without which vLLM does not start"
        yield Input("longest context", "not known", "assumed", "engines hold it", "--max-model-len", caution)
