"""The part of the GPU lane's page about transfers: tables of times, and what goals G1 and G2 say of them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from e2e.gpu.records import MEASURED

from .table import table

Record = Mapping[str, Any]
Rounds = Sequence[Mapping[str, float]]

FRESH, TRAFFIC = "fresh", "scattered"
STATES = {FRESH: "freshly started", TRAFFIC: "after traffic"}
PLAIN, STAGED, KVCACHED = "plain", "staged-large", "kvcached-staged-large"
FRESH_LIMIT = 1.1
"""Goal G1: a staged transfer between freshly started engines, of one from the blocks."""
TRAFFIC_LIMIT = 1 / 8
"""Goal G1: the same after traffic."""
KVCACHED_LEAST = 0.8
"""Goal G2: the rate of staged transfers under kvcached, of that of freshly started engines without it."""


def sections(records: Sequence[Record]) -> list[str]:
    """Return the lines of one device and model, none where no transfer was timed."""
    return [line for state in STATES for line in _times(records, state)] + _goals(records)


def name(record: Record) -> str:
    """Return variant and version of vLLM, and whether its batches change no answer."""
    exact = ", exact" if record.get("exact") else ""
    return f"{record['variant']}, vLLM {record['versions']['vllm']}{exact}"


def row(runs: Sequence[Rounds]) -> tuple[str, ...]:
    """Return what decode's leg takes beyond a hit, the rate, vLLM's telemetry, descriptors and staged transfers.

    Each run is of services started anew. Figures are medians of the runs' medians, with the least and the most of them;
    of one run alone, of its rounds.
    """
    rounds = [one for of in runs for one in of]
    walls = [statistics.median(_wall(one) for one in of) for of in runs]
    wall = statistics.median(walls)
    spread = walls if len(runs) > 1 else [_wall(one) for one in rounds]
    size = statistics.median(_bytes(one) for one in rounds)
    seconds = _seconds(runs)
    told = (
        f"{1e3 * statistics.median(seconds):.1f} ({1e3 * min(seconds):.1f} to {1e3 * max(seconds):.1f})"
        if seconds
        else ""
    )
    descriptors = [one["descriptors"] for one in rounds if "descriptors" in one]
    staged = sum(one.get("staged_loads", 0) > 0 for one in rounds)
    return (
        str(len(runs)),
        f"{1e3 * wall:.1f} ({1e3 * min(spread):.1f} to {1e3 * max(spread):.1f})",
        told,
        f"{size / statistics.median(seconds) / 1e9:.1f}" if seconds and size else "",
        f"{statistics.median(descriptors):,.0f}" if descriptors else "",
        f"{staged} of {len(rounds)}",
    )


def _times(records: Sequence[Record], state: str) -> list[str]:
    rows = [(f"{tokens:,}", who, *row(runs)) for (tokens, who), runs in sorted(_runs(records, state).items())]
    header = ("tokens", "variant", "runs", "decode's leg, ms", "vLLM's telemetry, ms", "GB/s", "descriptors", "staged")
    if not (found := table(header, rows)):
        return []
    return [
        "",
        f"### Transfer from prefill to decode, {STATES[state]}",
        "",
        f"Measured by `make e2e-gpu LANE='--only {state}'` with `--variants` for those below, `--exact` for `exact`"
        " ones. Decode's leg: the time to decode's first token, minus that of a hit in decode's own cache. Under"
        " kvcached such a hit takes long by itself, so that differences there say little, and may be negative."
        " Telemetry is the read alone, to the last copy of a staged one, and the rate is of it. Medians of the runs'"
        " medians, in brackets the least and the most of them; of one run, of its rounds.",
        *found,
    ]


def _goals(records: Sequence[Record]) -> list[str]:
    """Return the goals, of engines whose batches may change answers: the others are slower."""
    fast = [record for record in records if not record.get("exact")]
    seconds: dict[tuple[str, str, int], float] = {}
    rates: dict[tuple[str, str, int], float] = {}
    for state in STATES:
        by_variant: dict[tuple[str, int], list[Rounds]] = defaultdict(list)
        for record in fast:
            for tokens, of in _rounds(record, state).items():
                by_variant[record["variant"], tokens].append(of)
        for (variant, tokens), runs in by_variant.items():
            if told := _seconds(runs):
                seconds[state, variant, tokens] = statistics.median(told)
                size = statistics.median(_bytes(one) for of in runs for one in of)
                rates[state, variant, tokens] = size / seconds[state, variant, tokens]
    rows = []
    for tokens in sorted({at[2] for at in seconds}):
        cells = [_ratio(seconds.get((state, STAGED, tokens)), seconds.get((state, PLAIN, tokens))) for state in STATES]
        contiguous = rates.get((FRESH, PLAIN, tokens))
        cells += [_ratio(rates.get((state, KVCACHED, tokens)), contiguous) for state in STATES]
        if any(cells):
            rows.append((f"{tokens:,}", *cells))
    header = (
        "tokens", "G1, freshly started", "G1, after traffic", "G2, freshly started", "G2, after traffic",
    )  # fmt: skip
    found = table(header, rows)
    if not found:
        return []
    return [
        "",
        "### Goals G1 and G2",
        "",
        f"By telemetry. G1: a staged read's time of one from the blocks in the same state, at most {FRESH_LIMIT} and"
        f" {TRAFFIC_LIMIT:g}. G2: the rate of staged reads under kvcached of that from adjacent blocks without it, at"
        f" least {KVCACHED_LEAST}.",
        *found,
    ]


def _ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}" if one and other else ""


def _runs(records: Sequence[Record], state: str) -> dict[tuple[int, str], list[Rounds]]:
    found: dict[tuple[int, str], list[Rounds]] = defaultdict(list)
    for record in records:
        for tokens, of in _rounds(record, state).items():
            found[tokens, name(record)].append(of)
    return found


def _rounds(record: Record, state: str) -> dict[int, Rounds]:
    if record["step"] != state or record["outcome"] != MEASURED:
        return {}
    return {int(tokens): of for tokens, of in record.get("transfers", {}).items() if of}


def _seconds(runs: Sequence[Rounds]) -> list[float]:
    """Return the medians of vLLM's telemetry by run, none where a run has none."""
    told = [[one["seconds"] for one in of if "seconds" in one] for of in runs]
    return [statistics.median(of) for of in told] if all(told) else []


def _wall(one: Mapping[str, float]) -> float:
    return one["decode"] - one["hit"]


def _bytes(one: Mapping[str, float]) -> float:
    return one.get("our_bytes", one.get("bytes", 0.0))
