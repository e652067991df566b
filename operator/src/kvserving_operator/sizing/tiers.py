"""The tiers: as large as what passes in the time that it is to be kept, and whether they would be of use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..amounts import GI, big, number
from ..api.faults import Fault, InvalidSpec
from ..memory import SMALLEST_SHARD
from . import measured, roles, speed
from .figures import Line, seconds
from .roles import Bench, RoleSize

MOST_SHARDS = 100


@dataclass(frozen=True)
class Tiers:
    """Sizes in GiB; 0: no such tier, None: as it is. ``notices`` says where a tier would be of little use."""

    l1: int | None
    l2: int | None
    shards: int
    lines: tuple[Line, ...]
    notices: tuple[str, ...]


def kept(bench: Bench, tokens: int) -> float:
    """Bytes of KV of ``tokens`` tokens of one request."""
    return tokens * bench.model.kv_token + bench.model.fixed


def kept_arithmetic(bench: Bench, tokens: int) -> str:
    """``kept`` as an expression."""
    states = f" + {big(bench.model.fixed, 'B')}" if bench.model.fixed else ""
    return f"({number(tokens)} x {number(bench.model.kv_token)} bytes{states})"


def size_tiers(bench: Bench, prefill: RoleSize, max_usage: float) -> Tiers:
    """Both tiers, of which L2 is filled to ``max_usage``. Raises ``InvalidSpec`` where L2 needs too many shards."""
    demand = bench.demand
    lines: list[Line] = []
    notices: list[str] = []
    new, how = kept(bench, demand.computed), kept_arithmetic(bench, demand.computed)
    l1 = None if demand.l1_horizon is None else 0
    l2 = None if demand.l2_horizon is None else 0
    shards = 1
    more: list[Line] = []
    if demand.l1_horizon:
        l1 = _gib(demand.rate / prefill.replicas * new * demand.l1_horizon)
        shared = f" / {prefill.replicas}" if prefill.replicas > 1 else ""
        told = f"ceil({demand.rate:g}{shared} x {how} x {seconds(demand.l1_horizon)} / 1 GiB) x 1 GiB"
        lines.append(Line("L1 of a prefill replica", l1 * GI, f"{l1:,} GiB", told))
        own = prefill.kv_tokens * bench.model.kv_token
        if l1 * GI < own:
            notices.append(
                f"L1 of {l1:,} GiB is smaller than the engine's own cache ({big(own, 'B')}), which keeps as much: "
                "a longer --l1-horizon makes it useful, 0 leaves it out"
            )
    if demand.l2_horizon:
        l2 = _gib(demand.rate * new * demand.l2_horizon / max_usage)
        told = f"ceil({demand.rate:g} x {how} x {seconds(demand.l2_horizon)} / {max_usage:g} / 1 GiB) x 1 GiB"
        if demand.cached:
            shards, more, useless = _reads(bench, prefill, demand.l2_horizon)
            notices += useless
            least = -(-shards * SMALLEST_SHARD // GI)
            if l2 < least:
                l2, told = least, f"ceil({shards} x 64 MiB / 1 GiB) x 1 GiB, which is more than is to be kept"
        lines.append(Line("L2, all shards", l2 * GI, f"{l2:,} GiB", told))
        lines += more
    return Tiers(l1, l2, shards, tuple(lines), tuple(notices))


def _reads(bench: Bench, prefill: RoleSize, horizon: float) -> tuple[int, list[Line], list[str]]:
    """Shards for all that is reused, and whether reading it is faster than computing it."""
    demand, each = bench.demand, measured.STORE_BYTES_PER_SECOND
    prompt = demand.cached * bench.model.kv_token
    read = demand.rate * prompt
    shards = max(1, math.ceil(read / (demand.utilisation * each) - roles.RESERVE))
    if shards > MOST_SHARDS:
        message = (
            f"{seconds(horizon)}: {shards} shards would be read from, and an L2 has {MOST_SHARDS} at most: leave L2 "
            "out (0), or split the traffic"
        )
        raise InvalidSpec([Fault("--l2-horizon", message)])
    reading, computing = prompt / (shards * each), _computing(bench, prefill)
    lines = [
        Line(
            "L2: shards, all reads from it",
            shards,
            number(shards),
            f"ceil({big(read, 'B/s')} / ({demand.utilisation:g} x {big(each, 'B/s')}))",
        ),
        Line("L2: time of a read", reading, seconds(reading), f"{big(prompt, 'B')} / ({shards} x {big(each, 'B/s')})"),
        Line("L2: time to compute it instead", computing, seconds(computing)),
    ]
    if reading < computing:
        return shards, lines, []
    faster = math.floor(prompt / (computing * each)) + 1 if computing > 0 else MOST_SHARDS + 1
    way = (
        f"from {faster} shards on (spec.cache.l2.replicas) it would be of use"
        if faster <= MOST_SHARDS
        else "no number of shards helps"
    )
    return (
        shards,
        lines,
        [
            f"L2 is slower than computing: a read takes {seconds(reading)}, computing {seconds(computing)}, and "
            f"spec.cache.l2.loads auto then leaves it alone: {way} (--l2-horizon 0 leaves it out)"
        ],
    )


def _computing(bench: Bench, prefill: RoleSize) -> float:
    """What a prompt takes longer where none of it is reused."""
    demand = bench.demand
    if bench.measured.prefill is not None:
        return demand.cached / bench.measured.prefill
    whole = speed.prefill_time(bench.model, bench.device, prefill.tensor, demand.prompt)
    return whole.seconds - prefill.busy


def _gib(wanted: float) -> int:
    """Whole GiB, one at least."""
    return max(1, math.ceil(wanted / GI - roles.RESERVE))
