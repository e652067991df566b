"""What the soak asks, and what an engine without a connector answers to it.

    python -m e2e.soak.prompts MODEL FILE

The prompts are the same each time. Some share their beginnings, as turns of a conversation do.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.inside.engine import Engine, Settings

PROMPTS = 48
LONGEST = 4000
LONGEST_ANSWER = 96
HEADS = 6
MAX_MODEL_LEN = 4096
OWN_BLOCKS = 136
"""Of the engine's own cache: room for one request of the longest, so that others preempt each other."""
_VOCABULARY = range(10, 2000)
_CLEAR = 1e-3
"""Lead of the logprob of a token over the next best one: rounding, which differs with what is computed at once, is a
hundred times smaller."""


@dataclass(frozen=True)
class Question:
    """A prompt, and the whole answer to it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def main() -> None:
    """Ask an engine without a connector, one by one, and write down the questions whose answers are clear."""
    model, file = sys.argv[1:]
    engine = Engine(Settings(Path(model), blocks=OWN_BLOCKS, max_model_len=MAX_MODEL_LEN, prefix_caching=False))
    found: list[Question] = []
    number = 0
    while len(found) < PROMPTS:
        prompt, length = _made(number)
        answer = engine.ask(prompt, length, leads=True)
        if min(answer.leads) >= _CLEAR:
            found.append(Question(tuple(prompt), answer.ids))
        number += 1
    Path(file).write_text(json.dumps([asdict(question) for question in found]))
    engine.close()


def read(file: Path) -> list[Question]:
    """Return what ``main`` wrote."""
    return [Question(tuple(found["prompt"]), tuple(found["answer"])) for found in json.loads(file.read_text())]


def _made(number: int) -> tuple[list[int], int]:
    """Return a prompt and the length of its answer, which is 1 for one in four: what prefill engines answer."""
    rng = random.Random(f"prompt {number}")
    tokens = LONGEST if number == 0 else 1 if number == 1 else max(1, round(LONGEST * rng.random() ** 3))
    head = random.Random(f"head {number % HEADS}").choices(_VOCABULARY, k=LONGEST)
    shared = rng.randrange(tokens + 1) if rng.random() < 0.5 else 0
    tail = rng.choices(_VOCABULARY, k=tokens - shared)
    return [*head[:shared], *tail], 1 if rng.random() < 0.25 else rng.randint(2, LONGEST_ANSWER)


if __name__ == "__main__":
    main()
