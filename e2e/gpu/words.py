"""Words of this lane's command lines: seconds, counts, and behind ``--`` settings of vLLM as ``NAME=JSON``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any


def parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before the first ``--``, and those behind it."""
    at = words.index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def vllm_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings by name. Raises ValueError that names the word whose value is no JSON."""
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"{word!r} is not NAME=JSON, such as enforce_eager=true: {error}") from error
    return found


def seconds(word: str) -> float:
    """Return a time above 0 in seconds. Raises ArgumentTypeError for another word, ``nan`` and ``inf`` among them."""
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0.0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r} is no time in seconds above 0, such as 600")
    return found


def count(word: str) -> int:
    """Return a whole number from 1 on. Raises ArgumentTypeError for another word."""
    if not (word.isascii() and word.isdigit() and int(word[:9]) > 0):
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number from 1 on")
    return int(word)
