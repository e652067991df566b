"""The cheapest pair of roles that answers the demand, and what lies between and behind them."""

from __future__ import annotations

from dataclasses import dataclass

from ..amounts import big, number
from ..api.base import MOST_REPLICAS
from ..api.faults import Fault, InvalidSpec
from . import roles
from .demand import Demand, Limits, Measured, check
from .devices import DeviceType
from .figures import Input, Line, seconds
from .models import Model
from .roles import Bench, RoleSize, Unfit
from .sources import inputs, reading_rate, transfer_rate
from .tiers import Tiers, kept, kept_arithmetic, size_tiers


@dataclass(frozen=True)
class Sizing:
    """What to run, and how that came about."""

    prefill: RoleSize
    decode: RoleSize
    tiers: Tiers
    ttft: float
    itl: float
    lines: tuple[Line, ...]
    inputs: tuple[Input, ...]

    @property
    def devices(self) -> int:
        """Devices of both roles."""
        return self.prefill.devices + self.decode.devices

    @property
    def notices(self) -> tuple[str, ...]:
        """Inputs that are not known, or bounds alone, with what replaces them; tiers of little use."""
        doubtful = (entry for entry in self.inputs if entry.caution)
        cautions = (f"{entry.name}: {entry.caution} ({entry.replace} replaces it)" for entry in doubtful)
        return (*cautions, *self.tiers.notices)


def size(
    model: Model,
    device: DeviceType,
    demand: Demand,
    *,
    taken: Measured = Measured(),  # noqa: B008
    prefill: Limits = Limits(),  # noqa: B008
    decode: Limits = Limits(),  # noqa: B008
    max_usage: float = 0.85,
) -> Sizing:
    """Size both roles and the tiers; ``max_usage`` is the share of L2 that is filled.

    Fewest devices win, then equal tensor sizes, then small ones. Raises ``InvalidSpec`` where the demand is none that
    can be met, with what stands against it and the way out.
    """
    check(demand, taken, model)
    bench = Bench(model, device, demand, taken)
    first, second = _cheapest(bench, prefill, decode)
    ttft, itl, times = _expected(bench, first, second)
    tiers = size_tiers(bench, first, max_usage)
    lines = [
        *_model_lines(model),
        *first.lines,
        *second.lines,
        _devices_line(first, second),
        *_transfer_lines(bench),
        *times,
        *tiers.lines,
    ]
    return Sizing(
        prefill=first,
        decode=second,
        tiers=tiers,
        ttft=ttft,
        itl=itl,
        lines=tuple(lines),
        inputs=inputs(bench, first, second, prefill, decode),
    )


def _cheapest(bench: Bench, prefill: Limits, decode: Limits) -> tuple[RoleSize, RoleSize]:
    tensors = _tensors(bench)
    reasons: dict[str, str] = {}
    pairs: list[tuple[RoleSize, RoleSize]] = []
    for tensor in tensors:
        try:
            second = roles.decode(bench, tensor, decode)
        except Unfit as reason:
            reasons["decode"] = f"tensor {tensor}: {reason}"
            continue
        spent = sum(_beside(bench)) + second.busy
        for other in tensors:
            try:
                first = roles.prefill(bench, other, prefill, spent)
            except Unfit as reason:
                reasons["prefill"] = f"tensor {other}: {reason}"
                continue
            if _transferable(bench.model, other, tensor):
                pairs.append((first, second))
            else:
                heads = bench.model.facts.kv_heads
                reasons["prefill"] = f"tensor {other}: its ranks hold copies of {heads} KV heads, and decode has fewer"
    if not pairs:
        raise InvalidSpec([Fault("--device", _nothing_fits(bench, reasons), bench.device.name)])
    held = [pair for pair in pairs if max(size.replicas for size in pair) <= MOST_REPLICAS]
    if not held:
        raise InvalidSpec([_too_many(bench, pairs)])
    return min(
        held,
        key=lambda pair: (
            pair[0].devices + pair[1].devices,
            pair[0].tensor != pair[1].tensor,
            pair[0].tensor + pair[1].tensor,
        ),
    )


def _tensors(bench: Bench) -> tuple[int, ...]:
    possible = bench.model.tensors(64)
    wanted = bench.measured.tensor
    if wanted is None:
        return bench.model.tensors(bench.demand.devices_per_node)
    if wanted not in possible:
        message = (
            f"{wanted} does not divide the {bench.model.heads} heads of {bench.model.uri} as vLLM asks: "
            f"use {' or '.join(map(str, possible))}"
        )
        raise InvalidSpec([Fault("--tensor", message, str(wanted))])
    if wanted > bench.demand.devices_per_node:
        message = (
            f"{wanted} ranks need more than one node of {bench.demand.devices_per_node} devices: raise "
            "--devices-per-node, or see docs/multinode.md for engines on several nodes, which are not sized here"
        )
        raise InvalidSpec([Fault("--tensor", message, str(wanted))])
    return (wanted,)


def _transferable(model: Model, prefill: int, decode: int) -> bool:
    """Whether NIXL can move KV between roles of these tensor sizes: copied heads go to no fewer ranks."""
    copied = prefill > (model.facts.kv_heads or 1) and not model.facts.latent and model.facts.kind != "recurrent"
    return prefill <= decode or not copied


def _nothing_fits(bench: Bench, reasons: dict[str, str]) -> str:
    told = "; ".join(f"{role} with {why}" for role, why in reasons.items())
    return (
        f"{bench.device.name} serves {bench.model.uri} with no tensor size up to {bench.demand.devices_per_node} "
        f"(--devices-per-node): {told}. Use a device with more memory or bandwidth, fewer bits (a model stored as fp8, "
        "KV of type fp8), shorter prompts, or looser --ttft and --itl; engines on several nodes (docs/multinode.md) "
        "are not sized here"
    )


def _too_many(bench: Bench, pairs: list[tuple[RoleSize, RoleSize]]) -> Fault:
    first, second = min(pairs, key=lambda pair: max(size.replicas for size in pair))
    role, size = ("prefill", first) if first.replicas >= second.replicas else ("decode", second)
    rate = f"{bench.demand.rate:g}"
    more = " or more" if size.replicas >= roles.MOST_COUNTED else ""
    message = (
        f"{rate} requests a second need {number(size.replicas)}{more} replicas of {role}, and a role of one "
        f"service has {MOST_REPLICAS:,} at most: split the traffic over services, choose a faster device, loosen --ttft"
    )
    return Fault("--rate", message, rate)


def _model_lines(model: Model) -> list[Line]:
    lines = [Line("KV of a token", model.kv_token, big(model.kv_token, "B"), model.kv_arithmetic)]
    if model.fixed:
        lines.append(Line("states and windows of a request", model.fixed, big(model.fixed, "B")))
    return lines


def _devices_line(prefill: RoleSize, decode: RoleSize) -> Line:
    devices = prefill.devices + decode.devices
    how = f"{prefill.replicas} x {prefill.tensor} + {decode.replicas} x {decode.tensor}"
    ratio = f"{number(devices)} (prefill to decode {prefill.replicas}:{decode.replicas})"
    return Line("devices", devices, ratio, how)


def _beside(bench: Bench) -> tuple[float, float]:
    """Seconds of a request's transfer, and of reading from a tier what is not computed."""
    demand = bench.demand
    rate = reading_rate(demand)
    reading = demand.cached * bench.model.kv_token / rate if rate else 0.0
    return kept(bench, demand.prompt) / transfer_rate(bench), reading


def _transfer_lines(bench: Bench) -> list[Line]:
    prompt, rate = kept(bench, bench.demand.prompt), bench.demand.rate
    how = kept_arithmetic(bench, bench.demand.prompt)
    return [
        Line("transfer: bytes of a request", prompt, big(prompt, "B"), how),
        Line(
            "transfer: bandwidth, all requests",
            rate * prompt,
            big(rate * prompt, "B/s"),
            f"{rate:g} x {big(prompt, 'B')}",
        ),
    ]


def _expected(bench: Bench, prefill: RoleSize, decode: RoleSize) -> tuple[float, float, list[Line]]:
    """Mean time to the first token and between tokens, at the rate that is asked for."""
    transfer, reading = _beside(bench)
    used = bench.demand.rate * prefill.busy / prefill.replicas
    wait = used * prefill.busy / (2 * (1 - used))
    running, moment = roles.step_at(bench, decode)
    step = moment.seconds
    ttft = wait + prefill.busy + reading + transfer + step
    load = f"{bench.demand.rate:g} x {seconds(prefill.busy)} / {prefill.replicas}"
    parts = [
        seconds(wait),
        seconds(prefill.busy),
        *([seconds(reading)] if reading else []),
        seconds(transfer),
        seconds(step),
    ]
    sent = f"{big(kept(bench, bench.demand.prompt), 'B')} / {big(transfer_rate(bench), 'B/s')}"
    lines = [
        Line("prefill: utilisation", used, f"{used:.3g}", load),
        Line(
            "time in the queue, mean",
            wait,
            seconds(wait),
            f"{used:.3g} x {seconds(prefill.busy)} / (2 x (1 - {used:.3g}))",
        ),
    ]
    if reading:
        rate = big(reading_rate(bench.demand), "B/s")
        how = f"{number(bench.demand.cached)} x {number(bench.model.kv_token)} bytes / {rate}"
        lines.append(Line("time of a read from a tier", reading, seconds(reading), how))
    lines += [
        Line("time of a transfer", transfer, seconds(transfer), sent),
        Line("decode: requests at once, mean", running, number(running)),
        Line("time between tokens, mean", step, seconds(step), moment.arithmetic),
        Line("time to first token, mean", ttft, seconds(ttft), " + ".join(parts)),
    ]
    return ttft, step, lines
