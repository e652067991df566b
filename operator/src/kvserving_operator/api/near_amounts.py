"""What was meant by an amount that is almost in Kubernetes' notation: 1GB, 1Gib, 30 s, 5min, 0.85."""

from __future__ import annotations

import re

_SIZE = re.compile(r"\s*([0-9]+(?:[.,][0-9]+)?)\s*([A-Za-z]+)\s*")
_PREFIXES = "kmgtpe"
_TIME = re.compile(r"\s*([0-9]+)\s*([A-Za-z]+)\s*")
_TIMES = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), ("s", 1)),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), ("m", 1)),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), ("h", 1)),
    **dict.fromkeys(("d", "day", "days"), ("h", 24)),
}


def near_size(text: str) -> str:
    """Return the size that ``text`` means in Kubernetes' notation; empty where it is not plain what it means."""
    if (found := _SIZE.fullmatch(text)) is None:
        return ""
    number, unit = found[1].replace(",", "."), found[2].lower()
    unit = unit.removesuffix("bytes").removesuffix("byte")
    unit = unit.removesuffix("b")
    if not unit:
        return number
    if unit[0] not in _PREFIXES or unit[1:] not in ("", "i"):
        return ""
    if unit[1:]:
        return f"{number}{unit[0].upper()}i"
    return f"{number}{unit if unit == 'k' else unit.upper()}"


def near_duration(text: str) -> str:
    """Return the duration that ``text`` means, of one unit; empty where it is not plain what it means."""
    found = _TIME.fullmatch(text)
    unit = _TIMES.get(found[2].lower()) if found is not None else None
    return f"{int(found[1]) * unit[1]}{unit[0]}" if found is not None and unit is not None else ""


def near_percentage(text: str) -> str:
    """Return the percentage that ``text`` means: a number without its sign, or a share of one; else empty."""
    if re.fullmatch(r"\s*[0-9]{1,3}\s*%?\s*", text):
        return f"{int(text.strip().removesuffix('%'))}%"
    if found := re.fullmatch(r"0?\.([0-9]{1,2})", text):
        return f"{int(found[1].ljust(2, '0'))}%"
    return ""
