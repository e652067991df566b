"""One role with one tensor size: what fits into its devices, what a replica takes, and how many are needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..amounts import big, number
from . import speed
from .demand import WORKSPACE_BYTES, Demand, Limits, Measured
from .devices import DeviceType
from .figures import Line, seconds
from .models import Model

RESERVE = 1e-9
MOST_COUNTED = 1e12


class Unfit(Exception):
    """A tensor size that a role cannot have; the text says why, in one clause."""


@dataclass(frozen=True)
class Room:
    """Tokens of KV that fit into one replica beside its weights."""

    tokens: int
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class RoleSize:
    """Replicas of a role.

    ``busy`` is the time of one prompt (prefill) or of one step with a full batch (decode), ``capacity`` the requests a
    second that a replica takes at the utilisation that it is filled to, ``batch`` the requests that it runs at once,
    ``kv_tokens`` the tokens of KV that it holds.
    """

    tensor: int
    replicas: int
    busy: float
    capacity: float
    batch: int
    kv_tokens: int
    lines: tuple[Line, ...]

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.tensor * self.replicas


@dataclass(frozen=True)
class Bench:
    """What stays the same for every tensor size that is tried."""

    model: Model
    device: DeviceType
    demand: Demand
    measured: Measured


def room(bench: Bench, role: str, tensor: int, limits: Limits) -> Room:
    """What is left for KV in each of ``tensor`` ranks; raises ``Unfit`` where that is nothing."""
    model, device = bench.model, bench.device
    left = limits.memory_share * device.memory - model.weights / tensor - WORKSPACE_BYTES
    divided = f" / {tensor}" if tensor > 1 else ""
    how = (
        f"{limits.memory_share:g} x {big(device.memory, 'B')} - {big(model.weights, 'B')}{divided}"
        f" - {big(WORKSPACE_BYTES, 'B')}"
    )
    if left <= 0:
        raise Unfit(f"the weights leave no memory ({how} is {big(left, 'B')})")
    each = model.kv_of_rank(tensor)
    tokens = bench.measured.kv_tokens or int(left / each)
    ranks = f"{role}: memory for KV" + (" of a rank" if tensor > 1 else "")
    lines = [Line(ranks, left, big(left, "B"), how)]
    fit = "" if bench.measured.kv_tokens else f"{big(left, 'B')} / {number(each)} bytes"
    lines.append(Line(f"{role}: tokens that fit", tokens, f"{number(tokens)}", fit))
    return Room(tokens, tuple(lines))


def prefill(bench: Bench, tensor: int, limits: Limits, spent: float) -> RoleSize:
    """The prefill role. ``spent`` is what the first token takes beside waiting and computing.

    The wait is the mean one of a queue with constant service times, which is ``u x s / (2 x (1 - u))``.
    """
    model, demand = bench.model, bench.demand
    space = room(bench, "prefill", tensor, limits)
    # One prompt is computed while decode fetches another.
    if space.tokens < 2 * demand.prompt:
        raise Unfit(f"{space.tokens:,} tokens of KV fit, and two prompts are {2 * demand.prompt:,}")
    _hold_longest(bench, space)
    work = speed.prefill_work(model, demand.prompt, demand.cached)
    lines = [*space.lines]
    if bench.measured.prefill is None:
        how = speed.prefill_work_arithmetic(model, demand.prompt, demand.cached)
        lines.append(Line("prefill: work of a prompt", work, big(work, "FLOP"), how))
        lines += _exchange_lines(bench, "prefill", tensor, demand.computed)
        time = speed.prefill_time(model, bench.device, tensor, demand.prompt, demand.cached)
    else:
        taken = demand.computed / bench.measured.prefill
        time = speed.Time(taken, f"{number(demand.computed)} / {number(bench.measured.prefill)} tokens/s")
    filled, bound = demand.utilisation, f"{demand.utilisation:g}"
    if demand.ttft is not None:
        waits = demand.ttft - spent - time.seconds
        if waits <= 0:
            least = time.seconds + spent
            raise Unfit(f"the first token takes {seconds(least)} without waiting, and --ttft is {seconds(demand.ttft)}")
        allowed = 2 * waits / (time.seconds + 2 * waits)
        if allowed < filled:
            filled = allowed
            bound = f"{allowed:.3g}"
            how = f"2 x {seconds(waits)} / ({seconds(time.seconds)} + 2 x {seconds(waits)})"
            lines.append(Line("prefill: utilisation that --ttft allows", allowed, f"{allowed:.3g}", how))
    capacity = filled / time.seconds
    replicas = _replicas(demand.rate, capacity)
    rate = demand.computed / time.seconds
    lines += [
        Line("prefill: time of a prompt", time.seconds, seconds(time.seconds), time.arithmetic),
        _tokens_line("prefill", rate, f"{number(demand.computed)} / {seconds(time.seconds)}"),
        _capacity_line("prefill", capacity, f"{bound} / {seconds(time.seconds)}"),
        _tensor_line("prefill", tensor),
        _replicas_line("prefill", replicas, demand.rate, capacity),
    ]
    return RoleSize(tensor, replicas, time.seconds, capacity, 1, space.tokens, tuple(lines))


def decode(bench: Bench, tensor: int, limits: Limits) -> RoleSize:
    """The decode role: a batch as large as memory, vLLM and ``--itl`` allow."""
    model, demand = bench.model, bench.demand
    space = room(bench, "decode", tensor, limits)
    longest = demand.prompt + demand.output
    if space.tokens < longest:
        raise Unfit(f"{space.tokens:,} tokens of KV fit, and one request has {longest:,}")
    _hold_longest(bench, space)
    context = demand.prompt + demand.output / 2
    sequences = limits.sequences or bench.device.sequences
    of_request = context + model.fixed / tensor / model.kv_of_rank(tensor)
    batch = min(int(space.tokens / of_request), sequences)
    if batch < 1:
        raise Unfit(f"{space.tokens:,} tokens of KV fit, and a request takes as much as {of_request:,.0f}")
    fixed = f" + {number(of_request - context)} of its states" if model.fixed else ""
    each = f"{number(demand.prompt)} + {number(demand.output)} / 2{fixed}"
    how = f"floor(min({number(space.tokens)} / ({each}), {sequences}))"
    lines = [*space.lines, Line("decode: requests at once", batch, number(batch), how)]
    if bench.measured.decode is None:
        within = _within(bench, tensor, batch, context)
        if within < batch:
            lines.append(Line("decode: requests at once within --itl", within, number(within)))
            batch = within
        lines += _exchange_lines(bench, "decode", tensor, batch)
        time = speed.decode_time(model, bench.device, tensor, batch, context)
    else:
        told = f"{number(bench.measured.decode)} tokens/s"
        if demand.itl is not None and batch / bench.measured.decode > demand.itl:
            batch = int(demand.itl * bench.measured.decode + RESERVE)
            if batch < 1:
                step = seconds(1 / bench.measured.decode)
                raise Unfit(f"a token takes {step} by --decode-tokens-per-second, and --itl is {seconds(demand.itl)}")
            how = f"floor({seconds(demand.itl)} x {told})"
            lines.append(Line("decode: requests at once within --itl", batch, number(batch), how))
        time = speed.Time(batch / bench.measured.decode, f"{number(batch)} / {told}")
    rate = batch / time.seconds
    capacity = demand.utilisation * rate / demand.output
    replicas = _replicas(demand.rate, capacity)
    lines += [
        Line("decode: time of a step", time.seconds, seconds(time.seconds), time.arithmetic),
        _tokens_line("decode", rate, f"{number(batch)} / {seconds(time.seconds)}"),
        _capacity_line("decode", capacity, f"{demand.utilisation:g} x {number(rate)} / {number(demand.output)}"),
        _tensor_line("decode", tensor),
        _replicas_line("decode", replicas, demand.rate, capacity),
    ]
    return RoleSize(tensor, replicas, time.seconds, capacity, batch, space.tokens, tuple(lines))


def step_at(bench: Bench, size: RoleSize) -> tuple[float, speed.Time]:
    """Requests that a decode replica runs at once at the rate that is asked for, and its step then.

    By Little's law they are those that arrive while one is answered; at least one.
    """
    demand = bench.demand
    context = demand.prompt + demand.output / 2
    arriving = demand.rate / size.replicas * demand.output

    if bench.measured.decode is not None:
        return max(1.0, arriving * size.busy), speed.Time(size.busy, "")

    def step(batch: float) -> speed.Time:
        return speed.decode_time(bench.model, bench.device, size.tensor, batch, context)

    low, high = 1.0, float(max(1, size.batch))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle < arriving * step(middle).seconds else (low, middle)
    return low, step(low)


def _hold_longest(bench: Bench, space: Room) -> None:
    """Raise ``Unfit`` where the longest context does not fit: vLLM would not start."""
    longest = bench.model.facts.max_length or 0
    if space.tokens < longest:
        raise Unfit(
            f"{space.tokens:,} tokens of KV fit, and vLLM starts only where its longest context does, which is "
            f"{longest:,} (--max-model-len makes it shorter)"
        )


def _within(bench: Bench, tensor: int, batch: int, context: float) -> int:
    """The largest batch up to ``batch`` whose step is within ``--itl``; raises ``Unfit`` where one request is not."""
    itl = bench.demand.itl
    if itl is None:
        return batch

    def step(size: int) -> float:
        return speed.decode_time(bench.model, bench.device, tensor, size, context).seconds

    if step(1) > itl:
        raise Unfit(f"a step for one request takes {seconds(step(1))}, and --itl is {seconds(itl)}")
    low, high = 1, batch
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if step(middle) <= itl else (low, middle - 1)
    return low


def _exchange_lines(bench: Bench, role: str, tensor: int, tokens: float) -> list[Line]:
    time = speed.exchange_time(bench.model, bench.device, tensor, tokens)
    named = f"{role}: exchange between ranks"
    return [Line(named, time.seconds, seconds(time.seconds), time.arithmetic)] if time.seconds else []


def _replicas(rate: float, capacity: float) -> int:
    # Beyond what can be counted it is too many in any case.
    return max(1, math.ceil(min(rate / capacity, MOST_COUNTED) - RESERVE))


def _tokens_line(role: str, rate: float, how: str) -> Line:
    return Line(f"{role}: tokens of a replica", rate, f"{number(rate)} tokens/s", how)


def _capacity_line(role: str, capacity: float, how: str) -> Line:
    return Line(f"{role}: requests of a replica", capacity, f"{capacity:.3g} requests/s", how)


def _tensor_line(role: str, tensor: int) -> Line:
    return Line(f"{role}: tensor parallel size", tensor, number(tensor))


def _replicas_line(role: str, replicas: int, rate: float, capacity: float) -> Line:
    return Line(f"{role}: replicas", replicas, number(replicas), f"ceil({rate:g} / {capacity:.3g})")
