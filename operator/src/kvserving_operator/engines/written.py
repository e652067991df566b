"""Numbers as people and vLLM write them, in ASCII digits."""

from __future__ import annotations

import math
import re

_REAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")
_WHOLE = re.compile(r"[-+]?[0-9]{1,400}")
_READABLE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([kKmMgGtT])")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def real(text: str) -> float | None:
    """The finite number that ``text`` is; None where it is none."""
    value = float(text) if len(text) <= 400 and _REAL.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def whole(text: str) -> int | None:
    """The whole number that ``text`` is; None where it is none."""
    return int(text) if _WHOLE.fullmatch(text) else None


def readable(text: str) -> int | None:
    """A whole number as vLLM reads it: ``32k`` is 32,000, ``32K`` 32 x 1,024, ``25.6k`` 25,600; None for others."""
    found = _READABLE.fullmatch(text.strip())
    if found is None:
        return whole(text.strip())
    number, unit = found.groups()
    if unit.islower():
        return int(float(number) * 1000 ** _POWERS[unit])
    return int(number) * 1024 ** _POWERS[unit.lower()] if number.isdigit() else None
