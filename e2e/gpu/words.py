"""What follows ``--`` on a command line of this lane: settings of vLLM as ``NAME=JSON``."""

from __future__ import annotations

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
