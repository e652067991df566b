"""Names and numbers in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def some(names: Sequence[str], most: int = 4) -> str:
    """The first ``most`` of ``names``, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def times(number: int) -> str:
    """How often, in words."""
    return "once" if number == 1 else f"{number} times"


def count(number: int, noun: str) -> str:
    """So many of something: ``1 engine``, ``2 engines``, ``0 processes``."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"
