"""One engine under a mixed load until the time is up; raises AssertionError with the first thing that is not right.

    python -m e2e.soak.trial MODEL QUESTIONS RANKS OFFLOAD SECONDS SEED [STORE]

Prints lines of progress, and last a line of JSON: what was counted.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

from e2e.inside import ranks
from e2e.inside.engine import (
    BLOCK,
    FAILED,
    HITS,
    LOADED,
    LOST,
    PREEMPTIONS,
    PROMISED,
    SAVED,
    TIMEOUTS,
    Engine,
    Settings,
    resident_bytes,
)
from e2e.soak import memory
from e2e.soak.prompts import MAX_MODEL_LEN, OWN_BLOCKS, Question, read

L1_BLOCKS = 256
L1_BYTES = L1_BLOCKS * BLOCK * 4096
STORE_BYTES = 8 * L1_BYTES
MOST = 16
"""Requests at a time."""
RECENT = 8
AGAIN, ABORTED, RESET, SALTED = 0.6, 0.02, 0.002, 0.7
QUIET_SECONDS = 6.0
WARM_SHARE = 0.3
"""Of the time, after which memory must not grow."""
GROWTH_BYTES = 16 << 20
"""That a process may grow by, from there to the end."""
ENTRIES = 300
"""That a container of the connector may keep between requests; the ledger remembers the last 256 loads."""
TOLD_SECONDS = 15.0
SETTLE_SECONDS = 30.0
"""After which blocks that are still held are held for ever."""
_COUNTED = {"hits": HITS, "promised": PROMISED, "loaded": LOADED, "failed": FAILED, "saved": SAVED, "lost": LOST}


@dataclass
class Trial:
    """The engine, the requests that it has, and what came of the others."""

    engine: Engine
    questions: list[Question]
    rng: random.Random
    with_store: bool = False
    open: dict[str, Question] = field(default_factory=dict)
    recent: deque[tuple[Question, str | None]] = field(default_factory=lambda: deque(maxlen=RECENT))
    done: Counter[str] = field(default_factory=Counter)
    memory: dict[int, list[tuple[float, int]]] = field(default_factory=dict)

    def run(self, seconds: float) -> None:
        """Keep the engine busy, with quiet moments in which everything has to add up."""
        started = quiet = told = time.monotonic()
        while (now := time.monotonic()) - started < seconds:
            self.fill()
            self.step()
            if self.rng.random() < ABORTED:
                self.abort()
            if self.rng.random() < RESET:
                self.engine.vllm.reset_prefix_cache(reset_connector=True)
                self.done["resets"] += 1
            if now - quiet > QUIET_SECONDS:
                self.quiet(now - started)
                quiet = time.monotonic()
            if now - told > TOLD_SECONDS:
                told = now
                print(f"{now - started:5.0f} s: {self.line()}", flush=True)
        self.quiet(seconds)
        self.judge(seconds)
        self.spoiled()

    def fill(self) -> None:
        """Start requests; most repeat one of the last, which is under way or has ended."""
        while len(self.open) < self.rng.randint(1, MOST):
            if self.recent and self.rng.random() < AGAIN:
                question, salt = self.rng.choice(self.recent)
            else:
                # A salt makes the blocks of a known prompt unknown ones, with the same answer.
                salt = str(self.rng.getrandbits(64)) if self.rng.random() < SALTED else None
                question = self.rng.choice(self.questions)
                self.recent.append((question, salt))
            self.open[self.engine.add(question.prompt, len(question.answer), salt=salt)] = question

    def step(self) -> None:
        """Run a step, and compare what was answered."""
        for name, answer in self.engine.step().items():
            question = self.open.pop(name)
            assert answer.reason == "length", answer
            assert answer.ids == question.answer, (
                f"request {name} of {len(question.prompt)} tokens answers {answer.ids} instead of {question.answer}"
            )
            self.done["answers"] += 1

    def abort(self) -> None:
        """End one of the requests, wherever it is."""
        name = self.rng.choice(sorted(self.open)) if self.open else None
        if name is not None:
            self.engine.vllm.abort_request([name])
            del self.open[name]
            self.done["aborts"] += 1

    def quiet(self, at: float) -> None:
        """Let all requests end; then the scheduler and the ranks must agree, and nothing may be left of requests."""
        while self.open:
            self.step()
        self.settle()
        found = self.engine.of_ranks(ranks.held)
        common = frozenset.intersection(*(rank.keys for rank in found))
        tracked = self.engine.head.tracker.keys()
        # What a rank read from L2 for a request that ended before all ranks had answered is held and not tracked.
        agree = tracked <= common if self.with_store else tracked == common
        assert agree, (
            f"tracked and not held by all ranks: {len(tracked - common)}, held by all and not tracked: "
            f"{len(common - tracked)}, of {len(common)}"
        )
        assert self.held == {}, f"blocks are still held: {self.held}"
        kept = [memory.entries(self.engine.head, frozenset({"tracker", "_tracker"})), *self.engine.of_ranks(_kept)]
        grown = {path: size for half in kept for path, size in half.items() if size > ENTRIES}
        assert not grown, f"entries of requests that have ended: {grown}"
        for pid in {os.getpid(), *(rank.pid for rank in found)}:
            self.memory.setdefault(pid, []).append((at, resident_bytes(pid)))
        self.done["quiet moments"] += 1
        if self.done["quiet moments"] % 4 == 0:
            # Only a cache whose blocks are all free can be reset.
            assert self.engine.vllm.reset_prefix_cache(reset_connector=True)
            self.done["resets"] += 1

    @property
    def held(self) -> dict[int, int]:
        """The blocks that the connector holds, each with how often."""
        found: dict[int, int] = self.engine.core.scheduler.connector.scheduler_context.held
        return found

    def settle(self) -> None:
        """Run steps until no save is under way: the steps that settle others may begin some, when saving is late."""
        deadline = time.monotonic() + SETTLE_SECONDS
        self.engine.settle()
        while self.held and time.monotonic() < deadline:
            self.engine.settle()

    def judge(self, seconds: float) -> None:
        """What only the whole run shows."""
        counted = self.counted()
        assert counted["saved blocks"] >= 3 * L1_BLOCKS, counted
        assert counted["failed"] == 0, counted
        assert counted["loaded"] == counted["promised"] > 0, counted
        assert counted["preemptions"] > 0, counted
        assert counted["aborts"] > 0, counted
        assert (counted["from L2"] > 0) == self.with_store, counted
        for pid, samples in self.memory.items():
            warm = [sample for sample in samples if sample[0] >= WARM_SHARE * seconds]
            grown = memory.growth(warm)
            self.done[f"KiB grown, {'engine' if pid == os.getpid() else 'rank'}"] = round(grown / 1024)
            assert grown <= GROWTH_BYTES, (
                f"process {pid} grew by {grown / 2**20:.1f} MiB in {warm[-1][0] - warm[0][0]:.0f} s: "
                f"{[size >> 20 for _, size in samples]} MiB"
            )

    def spoiled(self) -> None:
        """With other KV in L1 answers must differ, or the comparison compares nothing."""
        first, second = sorted(self.questions, key=lambda found: (len(found.answer) > 1, len(found.prompt)))[-2:]
        for question in (first, second):
            # The second takes the blocks of the first, which are saved by then, whenever that is done.
            self.engine.ask(question.prompt, len(question.answer), salt="spoiled")
            self.engine.settle()
        self.engine.of_ranks(ranks.spoil)
        before = self.engine.counted(LOADED)
        answer = self.engine.ask(first.prompt, len(first.answer), salt="spoiled")
        self.engine.settle()
        assert self.engine.counted(LOADED) > before, "nothing was loaded"
        assert answer.ids != first.answer, "wrong KV must show in this comparison"

    def counted(self) -> dict[str, int]:
        """Return the counts so far."""
        found = {name: self.engine.counted(series) for name, series in _COUNTED.items()}
        found["from L2"] = self.engine.counted(LOADED, tier="l2")
        found["L2 timeouts"] = self.engine.counted(TIMEOUTS)
        found["saved blocks"] = found["saved"] // BLOCK
        found["preemptions"] = self.engine.counted(PREEMPTIONS)
        return {**self.done, **found}

    def line(self) -> str:
        """Return the counts and the memory as one line."""
        sizes = ", ".join(f"{samples[-1][1] >> 20} MiB" for samples in self.memory.values())
        return f"{', '.join(f'{name} {value}' for name, value in self.counted().items())}; {sizes}"


def _kept(worker: object) -> dict[str, int]:
    del worker
    return memory.entries(ranks.half(), frozenset({"pool", "_pool"}))


def main() -> None:
    """Run one trial."""
    model, questions, number, offload, seconds, seed, *store = sys.argv[1:]
    tiers = [{"type": "SharedStoreTier", "urls": [url], "max_bytes": STORE_BYTES} for url in store]
    engine = Engine(
        Settings(
            Path(model),
            ranks=int(number),
            blocks=OWN_BLOCKS,
            max_model_len=MAX_MODEL_LEN,
            l1_bytes=L1_BYTES,
            extra={"offload": offload, "offload_prompt_only": False, "secondary_tiers": tiers},
            max_num_seqs=MOST,
        )
    )
    trial = Trial(engine, read(Path(questions)), random.Random(seed), with_store=bool(store))
    trial.run(float(seconds))
    print(json.dumps(trial.counted()), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
