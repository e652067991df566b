"""Fresh text for probes: plain words in random order, so that no prefix cache can hold it."""

from __future__ import annotations

import random
from functools import cache
from importlib.resources import files

WANTED_WORDS = 700
"""About 1,000 tokens with the tokenizers in use."""

_MOST_TOKENS_PER_WORD = 8
"""A tokenizer that falls back to bytes needs one token per letter and one for the space."""

_ROOM_FOR_ANSWER = 16


@cache
def words() -> tuple[str, ...]:
    """Return the words that prompts are made of: short, lower case, at most seven letters."""
    return tuple(files(__package__).joinpath("words.txt").read_text(encoding="ascii").split())


def word_count(max_length: int | None) -> int:
    """Return how many words fit a model of ``max_length`` tokens (``None``: not known), whatever its tokenizer."""
    if max_length is None:
        max_length = 2048
    return max(1, min(WANTED_WORDS, (max_length - _ROOM_FOR_ANSWER) // _MOST_TOKENS_PER_WORD))


def fresh_prompt(seed: str, count: int) -> str:
    """Return ``count`` words drawn by ``seed``: the same text for the same seed, another from its first words on
    for any other."""
    drawn = random.Random(seed).choices(words(), k=count)  # noqa: S311 - the seed is what is secret or not
    return " ".join(drawn)
