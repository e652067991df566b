"""How long a prompt and a step of decode take on one replica.

Prefill: 2 operations for each parameter that a token uses, and for attention 2 for each number of a query and a value
with every token before; over the share of the device's peak that was measured for as much work. Decode: the bytes of
the weights that a batch touches and of its KV, or its operations, whichever takes longer. Prefill reads the weights,
too, which takes longer where prompts are short. Both pay for the exchange between tensor ranks: two all-reduces a
layer, as a ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..amounts import big, number
from ..api.v1alpha1 import KVSettings
from ..model_facts import common_name, lookup
from . import measured
from .devices import DEVICES, DeviceType
from .figures import parameters, seconds
from .models import Model, resolve

DECODE_SHARE = 0.6
"""Share of the memory's bandwidth, and of the peak, that decode is assumed to reach."""

STEP_SECONDS = 3e-3
"""What a step is assumed to take however little it does: scheduling, launches, sampling."""

ALL_REDUCE_SECONDS = 20e-6
"""What an all-reduce is assumed to take however little it carries."""


@dataclass(frozen=True)
class Time:
    """Seconds, and the expression that they are the value of."""

    seconds: float
    arithmetic: str


def peak(model: Model, device: DeviceType) -> float:
    """Operations a second that the device can do for the model's matrices."""
    return device.fp8 if model.eight_bits and device.fp8 is not None else device.bf16


def prefill_work(model: Model, prompt: int, cached: int = 0) -> float:
    """Operations for a prompt of which ``cached`` tokens have KV already."""
    new = prompt - cached
    matrices = 2 * model.active * new
    attention = model.layers * model.width * (prompt**2 - cached**2)
    windows = model.sliding * model.width * 2 * min(model.window, prompt) * new
    return matrices + attention + windows


def prefill_work_arithmetic(model: Model, prompt: int, cached: int = 0) -> str:
    """``prefill_work`` as an expression."""
    new = number(prompt - cached)
    squares = f"({number(prompt)}^2 - {number(cached)}^2)" if cached else f"{number(prompt)}^2"
    parts = [f"2 x {parameters(model.active)} x {new}", f"{model.layers} x {number(model.width)} x {squares}"]
    if model.sliding:
        parts.append(f"{model.sliding} x {number(model.width)} x 2 x {number(min(model.window, prompt))} x {new}")
    return " + ".join(parts)


@cache
def _points() -> tuple[tuple[float, float], ...]:
    """Work and share of the peak of each measured prompt."""
    uri = f"hf://{measured.PREFILL_MODEL}"
    facts, device = lookup(uri), DEVICES[measured.PREFILL_DEVICE]
    assert facts is not None
    model = resolve(uri, facts, KVSettings())
    works = ((prefill_work(model, prompt), taken) for prompt, taken in measured.PREFILL_SECONDS)
    return tuple((work, work / taken / device.bf16) for work, taken in works)


def share_of_peak(model: Model, device: DeviceType, tensor: int, work: float) -> tuple[float, bool]:
    """Share of the peak for ``work`` over ``tensor`` devices, and whether device and model are those measured."""
    found = measured.share_of_peak(work / tensor, _points())
    same = device.name == measured.PREFILL_DEVICE and is_measured(model)
    return found.value, same and tensor == 1 and found.within


def is_measured(model: Model) -> bool:
    """Whether the measured figures are those of this model, as it was published and with its own type of KV."""
    name, variant = common_name(model.uri)
    stated = any(entry.basis == "given" for entry in model.inputs)
    same = name == measured.PREFILL_MODEL and not variant and not model.eight_bits
    return same and not stated and model.kv.dtype in ("auto", "bfloat16")


def prefill_time(model: Model, device: DeviceType, tensor: int, prompt: int, cached: int = 0) -> Time:
    """Time in which a replica computes one prompt."""
    work = prefill_work(model, prompt, cached)
    share, _ = share_of_peak(model, device, tensor, work)
    exchange = exchange_time(model, device, tensor, prompt - cached).seconds
    computing = work / (tensor * peak(model, device) * share)
    reading = model.weights * touched_share(model, prompt - cached) / tensor / (device.bandwidth * DECODE_SHARE)
    longest = max(computing, reading, STEP_SECONDS)
    if longest == computing:
        how = f"{big(work, 'FLOP')} / ({tensor} x {big(peak(model, device), 'FLOP/s')} x {share:.3g})"
    elif longest == reading:
        weights = _weights(model, tensor, prompt - cached)
        how = f"{weights} / ({big(device.bandwidth, 'B/s')} x {DECODE_SHARE})"
    else:
        how = seconds(STEP_SECONDS)
    return Time(longest + exchange, how + _and(exchange))


def decode_time(model: Model, device: DeviceType, tensor: int, batch: float, context: float) -> Time:
    """Time of a step that gives each of ``batch`` requests of ``context`` tokens one more."""
    touched = touched_share(model, batch)
    request = context * model.kv_of_rank(tensor) + model.fixed / tensor
    read = model.weights * touched / tensor + batch * request
    # With latent attention, decode multiplies with the compressed KV itself.
    width = 2 * model.heads * (model.facts.head_dim or 0) if model.facts.latent else model.width
    seen = model.layers * context + model.sliding * min(model.window, context)
    operations = batch * 2 * (model.active + width * seen)
    reading = read / (device.bandwidth * DECODE_SHARE)
    computing = operations / (tensor * peak(model, device) * DECODE_SHARE)
    exchange = exchange_time(model, device, tensor, batch).seconds
    weights = _weights(model, tensor, batch)
    bytes_read = (
        f"({weights} + {number(batch)} x {big(request, 'B')}) / ({big(device.bandwidth, 'B/s')} x {DECODE_SHARE})"
    )
    work = f"{big(operations, 'FLOP')} / ({tensor} x {big(peak(model, device), 'FLOP/s')} x {DECODE_SHARE})"
    parts = {reading: bytes_read, computing: work, STEP_SECONDS: seconds(STEP_SECONDS)}
    longest = max(parts)
    return Time(longest + exchange, parts[longest] + _and(exchange))


def touched_share(model: Model, batch: float) -> float:
    """Share of the weights that a step reads: all, but for small batches of a model with experts.

    Each request is taken to choose its experts by itself.
    """
    return 1.0 if model.active >= model.parameters else 1 - (1 - model.active / model.parameters) ** batch


def _weights(model: Model, tensor: int, tokens: float) -> str:
    touched = touched_share(model, tokens)
    return big(model.weights, "B") + f" x {touched:.3g}" * (touched < 0.9995) + f" / {tensor}" * (tensor > 1)


def exchange_time(model: Model, device: DeviceType, tensor: int, tokens: float) -> Time:
    """Time of the all-reduces of a step over ``tokens``: a link carries half of its rate each way."""
    if tensor == 1:
        return Time(0.0, "")
    sent = tokens * model.hidden * 2 * 2 * (tensor - 1) / tensor
    taken = 2 * (model.facts.layers or 0) * (sent / (device.link / 2) + ALL_REDUCE_SECONDS)
    bytes_sent = f"{number(tokens)} x {number(model.hidden)} x 2 bytes x 2 x ({tensor} - 1) / {tensor}"
    rate = big(device.link / 2, "B/s")
    return Time(taken, f"2 x {model.facts.layers} x ({bytes_sent} / ({rate}) + {seconds(ALL_REDUCE_SECONDS)})")


def _and(exchange: float) -> str:
    return f" + {seconds(exchange)} exchange" if exchange else ""
