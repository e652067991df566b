"""One engine of ``first_tokens``, in a process of its own: asks, and writes what it found, a JSON object a line.

python -m e2e.gpu.first_tokens_engine SIDE PART,... --shape NAME --models FOLDER --found FILE ... [-- SETTING=JSON ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvserving_connector.core.cost import EVIDENCE, FIRST_DWELL

from . import models
from .engine import HITS, OWN, PENDING, WRITTEN_BYTES, Engine, Settings, link, made
from .records import FAILED, LEFT_OUT, MEASURED, told
from .rounds import RUNS, Turn, plan, verdicts
from .sides import SIDES, Side
from .timed import SHAPES, Timed
from .words import parted, vllm_settings

LOADED = "kvserving:tier_load_tokens"
SKIPPED = "kvserving:tier_loads_skipped"
MEASURING = "kvserving:tier_loads_to_measure"
FEWEST_TO_LEARN = EVIDENCE + FIRST_DWELL
"""Loads of one length after which measured costs can refuse one."""
TOKENS_TO_LEARN = 20_000
"""Short prompts are asked more often: the first times of an engine are of kernels that are compiled."""
MOST_TO_LEARN = 40
FAULT_CHARACTERS = 4000
AT_ONCE = 20
"""Prompts of a flood."""
_STORED_SECONDS = 120

Found = dict[str, Any]


def to_learn(length: int) -> int:
    """Return the rounds of a length before any that counts, where measured costs decide."""
    return max(FEWEST_TO_LEARN, min(MOST_TO_LEARN, TOKENS_TO_LEARN // length))


def prompt_of(name: str, length: int) -> list[int]:
    """Return so many tokens and one more, which no cache holds: some tiers would load a last block for its own sake."""
    return made(name, length + 1)


class Late(Exception):
    """The time that this engine may take is over."""


class Trial:
    """Asks one engine. ``left``: the seconds that it may still take."""

    def __init__(self, engine: Engine, side: Side, shape: Timed, lengths: Sequence[int], left: Callable[[], float]):
        self.engine, self.side, self.shape, self._left = engine, side, shape, left
        self.facts = engine.facts()
        self.lengths = shape.asked(lengths, self.facts["block"])
        self._tokens: set[int] = set()

    def tiers(self) -> Found:
        """Time prompts that are computed, that come from the engine's own cache, and from L1."""
        learned = {}
        for length in self.lengths:
            before = [self._turn(f"before {length} {at}", length) for at in range(self._before(length))]
            learned[str(length)] = _learned(before)
        rounds = self._rounds(plan(self.lengths), lambda turn: self._turn(turn.name, turn.length))
        return {
            "rounds": rounds,
            "learned": learned,
            "verdicts": verdicts(rounds, "l1") if self.side.connector else {},
            "kv_token": self.shape.kv_token if self.shape.dense else None,
            "problems": self._loads(rounds, "l1"),
        }

    def flood(self) -> Found:
        """Ask some prompts, flood the engine's own cache with many others, and ask the first ones again."""
        number, tokens = self.shape.flood
        again, length = self.shape.flooded
        runs: list[Found] = []
        for run in range(RUNS):
            try:
                runs.append({"run": run} | self._flooded(run))
            except Late:
                if run == 0:
                    raise
                break
        wrong = sum(same == "other" for one in runs for same in one["same"])
        problems = [f"{wrong} other answers"] if wrong else []
        if self.side.connector and any(one["hits"] == one["skipped"] == 0 for one in runs):
            problems.append("nothing came from L1 after the flood")
        if any(one["own"] for one in runs):
            problems.append("the engine's own cache kept prompts through the flood")
        sizes = {"flood": [number, tokens], "flooded": [again, length]}
        return {"runs": runs, **sizes, "problems": problems}

    def store(self) -> Found:
        """Time prompts that come from the store behind L1: own cache and L1 are emptied before they are asked again."""
        learned = {}
        for length in self.lengths:
            before = [self._from_store(f"store before {length} {at}", length) for at in range(EVIDENCE)]
            prompt = prompt_of(f"store before {length} 0", length)
            before += [self._reread(prompt) for _ in range(self._before(length) - EVIDENCE)]
            learned[str(length)] = _learned([one for one in before if "cold" in one], before, "l2")
        turns = plan(self.lengths, repeats=1)
        rounds = self._rounds(turns, lambda turn: self._from_store(f"store {turn.name}", turn.length))
        return {
            "rounds": rounds,
            "learned": learned,
            "verdicts": verdicts(rounds, "l2"),
            "problems": self._loads(rounds, "l2"),
        }

    def _rounds(self, turns: Sequence[Turn], ask: Callable[[Turn], Found]) -> dict[str, list[Found]]:
        """Return the rounds by length. When time runs out whole runs are kept; raises ``Late`` when none is."""
        found: dict[str, list[Found]] = {str(length): [] for length in self.lengths}
        for turn in turns:
            try:
                found[str(turn.length)].append({"run": turn.run} | ask(turn))
            except Late:
                if turn.run == 0:
                    raise
                return {length: [one for one in of if one["run"] < turn.run] for length, of in found.items()}
        return found

    def _before(self, length: int) -> int:
        return to_learn(length) if self.side.learns else FEWEST_TO_LEARN // 2

    def _turn(self, name: str, length: int) -> Found:
        """Ask one prompt for each state."""
        if self._left() < 0:
            raise Late
        prompt = prompt_of(name, length)
        self.engine.settle()
        cold, first = self._first(prompt)
        if self.side.connector is None:
            own, second = self._first(prompt)
            return {"cold": cold, "own": own, "loaded": 0, "same": same(first, second)}
        before = self._counts()
        # What is compared is asked alike: behind other answers, not behind a pause.
        self.engine.settle()
        self.engine.forget()
        l1, second = self._first(prompt)
        self.engine.settle()
        own, third = self._first(prompt)
        self.engine.settle()
        counts = self._since(before)
        found = {"cold": cold, "l1": l1, "own": own, "loaded": counts["hits"], **_decided(counts)}
        return {**found, "same": same(first, third, second if counts["hits"] else third)}

    def _flooded(self, run: int) -> Found:
        if self._left() < 0:
            raise Late
        (number, tokens), (again, length) = self.shape.flood, self.shape.flooded
        prompts = [made(f"flooded {run} {at}", length) for at in range(again)]
        self.engine.settle()
        cold = [self._first(prompt) for prompt in prompts]
        self.engine.settle()
        started = time.monotonic()
        for first in range(0, number, AT_ONCE):
            if self._left() < 0:
                raise Late
            names = [f"flood {run} {at}" for at in range(first, min(first + AT_ONCE, number))]
            self.engine.ask([made(name, tokens) for name in names], 1, together=True)
        self.engine.settle()
        took = time.monotonic() - started
        before = self._counts()
        warm = [self._first(prompt) for prompt in prompts]
        self.engine.settle()
        counts = self._since(before)
        own = [self._first(prompt)[1] for prompt in prompts]
        tokens_of = zip((token for _, token in cold), own, (token for _, token in warm), strict=True)
        return {
            "cold": _mean(cold),
            "after": _mean(warm),
            "flood_seconds": round(took, 2),
            **counts,
            # Some may have been left to be computed.
            "same": [same(right, kept, kept if found == right else found) for right, kept, found in tokens_of],
        }

    def _from_store(self, name: str, length: int) -> Found:
        prompt = prompt_of(name, length)
        self.engine.settle()
        before = self.engine.counted(WRITTEN_BYTES)
        cold, first = self._first(prompt)
        self._stored(before, length)
        return {"cold": cold, **self._reread(prompt, first)}

    def _reread(self, prompt: Sequence[int], right: int | None = None) -> Found:
        if self._left() < 0:
            raise Late
        self.engine.settle()
        self.engine.forget(l1=True)
        before = self._counts()
        l2, second = self._first(prompt)
        own, third = self._first(prompt)
        self.engine.settle()
        counts = self._since(before)
        found = {"l2": l2, "own": own, "loaded": counts["l2"], **_decided(counts)}
        return {**found, "same": same(third if right is None else right, third, second if counts["l2"] else third)}

    def _stored(self, before: int, length: int) -> None:
        """Wait until the store has a prompt, of whose bytes it had ``before``, and nothing is left to be written to it.

        Of a model that is not dense it is known only that something of the prompt was written, and no more follows.
        Raises TimeoutError after ``_STORED_SECONDS``.
        """
        block = self.facts["block"]
        least = before + (length // block * block * self.shape.kv_token if self.shape.dense else 1)
        until, written = time.monotonic() + _STORED_SECONDS, -1
        while True:
            self.engine.settle()
            last, written = written, self.engine.counted(WRITTEN_BYTES)
            if last == written >= least and self.engine.counted(PENDING, operation="store") == 0:
                return
            if time.monotonic() > until:
                pending = self.engine.counted(PENDING, operation="store")
                raise TimeoutError(f"of {least:,} bytes {written:,} are written, {pending} chunks are still to be")

    def _first(self, prompt: Sequence[int]) -> tuple[float, int]:
        seconds, token = self.engine.first_token(prompt)
        self._tokens.add(token)
        return round(seconds, 6), token

    def _counts(self) -> dict[str, int]:
        names = {"hits": HITS, "own": OWN, "skipped": SKIPPED, "measuring": MEASURING}
        found = {short: self.engine.counted(name) for short, name in names.items()}
        return found | {"l2": self.engine.counted(LOADED, tier="l2")}

    def _since(self, before: dict[str, int]) -> dict[str, int]:
        return {name: value - before[name] for name, value in self._counts().items()}

    def _loads(self, rounds: dict[str, list[Found]], state: str) -> list[str]:
        """Return what is wrong with the answers, and with what was loaded."""
        every = [one for of in rounds.values() for one in of]
        wrong = sum(one["same"] == "other" for one in every)
        problems = [f"{wrong} other answers"] if wrong else []
        problems += [] if len(self._tokens) > 1 else ["all prompts have one answer: equal ones prove nothing"]
        if self.side.connector is None:
            return problems
        block = self.facts["block"]
        whole = {length: int(length) // block * block for length in rounds}
        if self.shape.dense and any(
            one["loaded"] not in (0, whole[length]) for length in rounds for one in rounds[length]
        ):
            problems.append(f"prompts were loaded from {state} in part")
        if any(one["loaded"] == one["skipped"] == 0 for one in every):
            problems.append(f"prompts were neither loaded from {state} nor left to be computed")
        return problems


def same(computed: int, own: int, loaded: int | None = None) -> str:
    """Return how first tokens compare: ``equal``, ``rounding`` or ``other``.

    A prompt whose KV was loaded, or is in the engine's own cache, is computed from the same place by the same kernels:
    another token then comes of other KV. Computing it whole takes other kernels, whose rounding may give another one
    without any connector.
    """
    if loaded is not None and loaded != own:
        return "other"
    return "equal" if computed == own else "rounding"


def _learned(colds: Sequence[Found], asked: Sequence[Found] | None = None, state: str = "l1") -> Found:
    """Return what was seen before the rounds that count; ``taken``: loads, which at first are always made."""
    taken = [one[state] for one in (colds if asked is None else asked) if one["loaded"]]
    return {
        "rounds": len(colds if asked is None else asked),
        "cold": statistics.median(one["cold"] for one in colds),
        "taken": len(taken),
        **({state: statistics.median(taken)} if taken else {}),
    }


def _decided(counts: dict[str, int]) -> Found:
    return {"skipped": counts["skipped"], "measuring": counts["measuring"]}


def _mean(asked: Sequence[tuple[float, int]]) -> float:
    return round(statistics.mean(seconds for seconds, _ in asked), 6)


def looked(trial: Trial, part: str) -> Found:
    """Return the record of one part of a trial."""
    started = time.monotonic()
    try:
        found = {"tiers": trial.tiers, "flood": trial.flood, "store": trial.store}[part]()
    except Late:
        found = {"outcome": LEFT_OUT, "fault": "the budget ended before the first run did"}
    except Exception as fault:
        # Whatever it is: the parts after this one are worth their time.
        print("".join(traceback.format_exception(fault)), file=sys.stderr, flush=True)
        found = {"outcome": FAILED, "fault": told(fault)[:FAULT_CHARACTERS]}
    else:
        found["outcome"] = FAILED if found["problems"] else MEASURED
    return {"part": part, "took": round(time.monotonic() - started, 2), "facts": trial.facts, **found}


def main() -> int:
    """Run one engine; return the exit status."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description="One engine of first_tokens.")
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("parts")
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--lengths", required=True)
    parser.add_argument("--l1-bytes", type=int, required=True)
    parser.add_argument("--found", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--store", type=Path)
    own, behind = parted(sys.argv[1:])
    arguments = parser.parse_args(own)
    side, shape = SIDES[arguments.side], SHAPES[arguments.shape]
    lengths = [int(length) for length in arguments.lengths.split(",")]
    more = shape.settings(max(*lengths, shape.flooded[1]))
    more |= vllm_settings(behind)
    extra = side.extra(arguments.l1_bytes, shape.device, arguments.store, shape.store_bytes) if side.connector else {}
    model = models.make(shape.model, arguments.models)
    engine = Engine(Settings(model, extra, connector=side.connector, more=more))
    trial = Trial(engine, side, shape, lengths, lambda: arguments.seconds - (time.monotonic() - started))
    trial.facts |= {"start": round(time.monotonic() - started, 1), "link": engine.of_ranks(link)[0]}
    with arguments.found.open("a") as lines:
        for part in arguments.parts.split(","):
            lines.write(json.dumps(looked(trial, part)) + "\n")
            lines.flush()
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
