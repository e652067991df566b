"""Two ranks with unequal tiers, one of which then fails loads; prints what was seen as a line of JSON.

    python -m e2e.inside.worker_cache MODEL

Run by the engine's interpreter, with the repository on PYTHONPATH.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.inside import ranks
from e2e.inside.engine import BLOCK, FAILED, FAULTY, HITS, LOADED, OWN, PROMISED, Answer, Engine, Settings

BLOCKS = 41
"""Of the engine's own cache, one of which it never uses."""
BLOCK_BYTES = 65536
"""Of one rank: half of two heads of 64 numbers of 4 bytes, keys and values, 4 layers, 32 tokens."""
L1_BLOCKS = 192
"""Of the first rank. The second has half of it."""
PROMPTS = (640, 257)
FLOOD = (BLOCKS - 1) * BLOCK - 10
"""Takes all blocks of the engine's own cache, and with the prompts 67 of L1."""
MORE = (1000, 1000, 1000)
"""Takes 93 blocks of L1: the second rank gives up the first prompts, the first rank does not."""
ANSWER = 8
SHARE = 0.3
ROUNDS = 4


class Trial:
    """Asks, and counts what was computed: vLLM's scheduler is watched, so that no connector's word is taken for it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.scheduled = 0
        schedule = engine.core.scheduler.schedule

        def watched(*arguments: Any, **named: Any) -> Any:
            output = schedule(*arguments, **named)
            self.scheduled += output.total_num_scheduled_tokens
            return output

        engine.core.scheduler.schedule = watched

    def ask(self, prompts: Sequence[list[int]]) -> dict[str, Any]:
        """Ask one after the other; return the answers, and the counts of the time."""
        before, scheduled = self._counts(), self.scheduled
        answers: list[Answer] = [self.engine.ask(prompt, ANSWER) for prompt in prompts]
        asked = sum(len(prompt) + ANSWER - 1 for prompt in prompts)
        computed = self.scheduled - scheduled
        self.engine.settle()
        counts = {name: value - before[name] for name, value in self._counts().items()}
        return {
            "ids": [answer.ids for answer in answers],
            "reasons": sorted({str(answer.reason) for answer in answers}),
            "spared": asked - computed,
            **counts,
        }

    def state(self) -> dict[str, Any]:
        """Return how the tracker and the ranks agree, and what is still held."""
        found = self.engine.of_ranks(ranks.held)
        tracked = self.engine.head.tracker.keys()
        return {
            "tracked": len(tracked),
            "agrees": tracked == frozenset.intersection(*(rank.keys for rank in found)),
            "used": [rank.used for rank in found],
            "capacity": [rank.capacity for rank in found],
            "held": len(self.engine.core.scheduler.connector.scheduler_context.held),
        }

    def _counts(self) -> dict[str, int]:
        names = {"hits": HITS, "own": OWN, "loaded": LOADED, "failed": FAILED, "promised": PROMISED}
        return {short: self.engine.counted(name) for short, name in names.items()}


def main() -> None:
    """Run all of it in one engine."""
    engine = Engine(
        Settings(
            Path(sys.argv[1]),
            ranks=2,
            blocks=BLOCKS,
            max_model_len=(BLOCKS - 1) * BLOCK,
            l1_bytes=2 * L1_BLOCKS * BLOCK_BYTES,
            module=FAULTY,
        )
    )
    trial = Trial(engine)
    prompts = [made(seed, tokens) for seed, tokens in enumerate(PROMPTS)]
    flood = made(100, FLOOD)
    found: dict[str, Any] = {"cold": trial.ask(prompts)}
    trial.ask([flood])
    found |= {"warm": trial.ask(prompts), "stored": trial.state()}

    trial.ask([made(200 + number, tokens) for number, tokens in enumerate(MORE)])
    found |= {"full": trial.state(), "evicted": trial.ask(prompts)}

    engine.of_ranks(ranks.fail, 1, SHARE)
    rounds = []
    for _ in range(ROUNDS):
        trial.ask([flood])
        rounds.append(trial.ask(prompts))
    found |= {"failing": rounds, "failed": trial.state()}

    engine.of_ranks(ranks.fail, 1, 0.0)
    trial.ask([flood])
    engine.of_ranks(ranks.spoil)
    found["spoiled"] = trial.ask(prompts)
    print("\n" + json.dumps(found), flush=True)
    engine.close()


def made(seed: int, tokens: int) -> list[int]:
    """Return a prompt that no other seed begins like."""
    return [random.Random(f"{seed} {position}").randrange(10, 2000) for position in range(tokens)]


if __name__ == "__main__":
    main()
