"""The part of the GPU lane's page that ``e2e.gpu.first_tokens`` has measured: tables, and the plots beside them."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.gpu.rounds import LIMIT, RUNS, Spread, against_cold, bound

from .plot import plot
from .table import table

Record = Mapping[str, Any]
Rounds = Sequence[Mapping[str, Any]]

STEPS = ("ttft-tiers", "ttft-flood", "ttft-store")
PLACES = {"l1": "L1", "l2": "the store"}
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def sections(records: Sequence[Record]) -> list[str]:
    """Return the lines of one device and model, none where nothing was measured of it."""
    return _tiers(records) + _flood(records) + _store(records)


def pictures(records: Sequence[Record]) -> dict[Path, str]:
    """Return the plots of one device and model by the file they belong in."""
    found = {}
    for step, state in (("ttft-tiers", "l1"), ("ttft-store", "l2")):
        lines = {
            _who(record): [
                (float(tokens), share)
                for tokens, of in record["rounds"].items()
                if of and (share := _drawn(record, tokens, of, state)) is not None
            ]
            for record in _of(records, step)
            if record["variant"] != "none"
        }
        if any(lines.values()):
            title = f"First token from {PLACES[state]}, as a share of computing"
            drawn = plot(title, ("tokens of the prompt", "share"), lines, level=1.0)
            found[_picture(records, state)] = drawn
    return found


def _drawn(record: Record, tokens: str, of: Rounds, state: str) -> float | None:
    """Return the share of computing; of a store that of the loads that were always made, None without them."""
    if state == "l1":
        return Spread.of(of, state).median / Spread.of(of, "cold").median
    learned = record.get("learned", {}).get(tokens, {})
    return learned[state] / learned["cold"] if learned.get(state) and learned.get("cold") else None


def _tiers(records: Sequence[Record]) -> list[str]:
    rows = []
    for length, record, of in _lengths(_of(records, "ttft-tiers")):
        loads = record["variant"] != "none"
        limit = _limit(record, of) if loads else None
        rows.append(
            (
                f"{length:,}",
                _who(record),
                str(len({one["run"] for one in of})),
                _ms(Spread.of(of, "cold")),
                _ms(Spread.of(of, "own")),
                _ms(Spread.of(of, "l1")) if loads else "",
                f"{statistics.median(one['loaded'] for one in of):,.0f}" if loads else "",
                _share(of, "l1") if loads else "",
                f"{1e3 * limit:.1f}" if limit is not None else "",
                against_cold(of, "l1") if loads else "",
                _always(record, length, "l1"),
            )
        )
    header = (
        "tokens", "side", "runs", "computed, ms", "own cache, ms", "L1, ms", "loaded", "L1 to computed",
        "G3's bound, ms", "against computing", "always loaded, ms",
    )  # fmt: skip
    found = table(header, rows)
    if not found:
        return []
    return [
        "",
        "### Time to the first token from L1",
        "",
        f"One engine a side, one request at a time. Measured by {_commands(records)}. `none`: no connector; `stock`:"
        " vLLM's own OffloadingConnector with as much host memory;"
        " `scheduler`: TieredOffloadConnector; `worker`: WorkerCacheConnector, both with loads where they were measured"
        " to be faster, which is why nothing may be loaded."
        " Medians of the runs' medians, in brackets the least and the most of them; of one run, of its rounds."
        " `always loaded`: the median of loads before that was measured. Against computing: `within noise` is slower,"
        " by less than the runs of computing differ."
        f" G3's bound: {LIMIT} times a hit in the engine's own cache and the bytes over the link, whose rate was"
        f" measured in the engine ({_links(records)}).",
        *found,
        *_shown(records, "l1"),
        *_answers(_of(records, "ttft-tiers")),
    ]


def _flood(records: Sequence[Record]) -> list[str]:
    measured = _of(records, "ttft-flood")
    rows = []
    for record in measured:
        runs = record["runs"]
        own = record["facts"]["blocks"] * record["facts"]["block"]
        times = [Spread.of(runs, state) for state in ("cold", "after")]
        rows.append(
            (
                _who(record),
                *map(_ms, times),
                f"{times[1].median / times[0].median:.2f}",
                _range(one["hits"] for one in runs),
                f"{record['flood'][0] * record['flood'][1] / own:.1f}",
            )
        )
    header = (
        "side",
        "computed, ms",
        "after the flood, ms",
        "to computed",
        "external hits, tokens",
        "flood to own cache",
    )
    found = table(header, rows)
    if not found:
        return []
    (number, tokens), (again, length) = measured[0]["flood"], measured[0]["flooded"]
    return [
        "",
        "### After a flood",
        "",
        f"{again} prompts of {length:,} tokens, then {number} others of {tokens} tokens, which take the engine's own"
        f" cache several times over, then the first {again} again: means of {again}, medians of {RUNS} runs, in"
        " brackets the least and the most; hits are those of `vllm:external_prefix_cache_hits`.",
        *found,
        *_answers(measured),
    ]


def _store(records: Sequence[Record]) -> list[str]:
    measured = _of(records, "ttft-store")
    rows = []
    for length, record, of in _lengths(measured):
        learned = record.get("learned", {}).get(str(length), {})
        then, always = learned.get("cold"), learned.get("l2")
        loaded = statistics.median(one["loaded"] for one in of)
        rows.append(
            (
                f"{length:,}",
                _who(record),
                f"{1e3 * then:.1f}" if then is not None else "",
                _always(record, length, "l2"),
                f"{always / then:.2f}" if always and then else "",
                f"{loaded:,.0f}",
                _ms(Spread.of(of, "l2")),
                against_cold(of, "l2") if loaded else "computed again",
            )
        )
    header = (
        "tokens", "side", "computed, ms", "always loaded, ms", "loaded to computed",
        "loaded by choice", "first token by choice, ms", "against computing",
    )  # fmt: skip
    found = table(header, rows)
    if not found:
        return []
    return [
        "",
        "### Time to the first token from the store behind L1",
        "",
        f"Measured by `python -m e2e.gpu.first_tokens --sides {_sides(measured)} --parts store` on"
        f" {measured[0]['device']}. Files in a folder of the same machine, read from the operating system's cache where"
        " it has them; the engine's own cache and L1 are emptied before a prompt is asked again. First loads are always"
        " made, to measure; then the engine chooses: 0 tokens are loaded where it leaves the store alone.",
        *found,
        *_shown(records, "l2"),
        *_answers(measured),
    ]


def _of(records: Iterable[Record], step: str) -> list[Record]:
    return [record for record in records if record["step"] == step and (record.get("rounds") or record.get("runs"))]


def _lengths(records: Iterable[Record]) -> list[tuple[int, Record, Rounds]]:
    found = [(int(tokens), record, of) for record in records for tokens, of in record["rounds"].items() if of]
    return sorted(found, key=lambda one: one[0])


def _who(record: Record) -> str:
    return f"{record['variant']}, vLLM {record['versions']['vllm']}"


def _ms(spread: Spread) -> str:
    return f"{1e3 * spread.median:.1f} ({1e3 * spread.least:.1f} to {1e3 * spread.most:.1f})"


def _share(of: Rounds, state: str) -> str:
    return f"{Spread.of(of, state).median / Spread.of(of, 'cold').median:.2f}"


def _limit(record: Record, of: Rounds) -> float | None:
    size, link = record.get("kv_token"), record["facts"].get("link")
    return bound(of, size, link) if size and link else None


def _always(record: Record, length: int, state: str) -> str:
    seconds = record.get("learned", {}).get(str(length), {}).get(state)
    return f"{1e3 * seconds:.1f}" if seconds is not None else ""


def _range(values: Iterable[float]) -> str:
    ordered = sorted(values)
    least, most = f"{ordered[0]:,.0f}", f"{ordered[-1]:,.0f}"
    return least if least == most else f"{least} to {most}"


def _links(records: Sequence[Record]) -> str:
    rates = [record["facts"]["link"] / 1e9 for record in _of(records, "ttft-tiers") if record["facts"].get("link")]
    return f"{min(rates):.1f} to {max(rates):.1f} GB/s" if rates else "there is none"


def _commands(records: Sequence[Record]) -> str:
    """Return what measured, and on what."""
    measured = _of(records, "ttft-tiers")
    said = sorted({" ".join(record["settings"]) for record in measured})
    jobs = max(record.get("jobs", 1) for record in measured)
    together = f", {jobs} engines at once on GPUs of their own" if jobs > 1 else ""
    parts = sorted({record["step"].removeprefix("ttft-") for record in measured})
    options = f" --sides {_sides(measured)} --parts {','.join(parts)}{f' --jobs {jobs}' if jobs > 1 else ''}"
    found = [f"`python -m e2e.gpu.first_tokens{options}{f' -- {words}' if words else ''}`" for words in said]
    return f"{', or by '.join(found)} on {measured[0]['device']}{together}"


def _sides(records: Iterable[Record]) -> str:
    return ",".join(dict.fromkeys(record["variant"] for record in records))


def _answers(records: Sequence[Record]) -> list[str]:
    """Return how many first tokens are right, and what else was wrong.

    Without a connector, too, a prompt may get one first token when it is computed and another one from the engine's
    own cache, by other kernels that round otherwise; where it does, a side that has both tells nothing.
    """
    alone = {at for record in records if record["variant"] == "none" for at, same in _sames(record) if same != "equal"}
    counts: dict[str, int] = defaultdict(int)
    wrong = []
    for record in records:
        others = 0
        for at, same in _sames(record):
            kind = "rounding" if same != "equal" and at in alone else same
            counts[kind] += 1
            others += kind == "other"
        problems = [problem for problem in record.get("problems", ()) if "other answers" not in problem]
        problems += [f"{others} other answers"] if others else []
        wrong += [f"{_who(record)}: {problem}." for problem in problems]
    rounding = f", {counts['rounding']} where rounding gives two without a connector, too" if counts["rounding"] else ""
    told = f"First tokens: {counts['equal']} equal to the computed one{rounding}, {counts['tie']} ties, "
    return ["", " ".join([f"{told}{counts['other']} others.", *wrong])]


def _sames(record: Record) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield where a record compared first tokens, and what it found."""
    for length, of in record.get("rounds", {}).items():
        yield from (((length, at), one["same"]) for at, one in enumerate(of))
    for run, one in enumerate(record.get("runs", ())):
        yield from (((run, at), same) for at, same in enumerate(one["same"]))


def _picture(records: Sequence[Record], state: str) -> Path:
    words = re.sub(r"[^a-z0-9]+", "-", f"{records[0]['device'].partition(',')[0]} {records[0]['shape']}".lower())
    return PICTURES / f"first-tokens-{state}-{words.strip('-')}.svg"


def _shown(records: Sequence[Record], state: str) -> list[str]:
    return [
        "",
        f"![First token from {PLACES[state]}, as a share of computing](pictures/{_picture(records, state).name})",
    ]
