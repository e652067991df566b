"""Numbers with the units that the dashboards name, as Grafana writes them, and the marks of an axis."""

from __future__ import annotations

import math
from collections.abc import Callable

_STEPS = (1, 2, 2.5, 5, 10)


def _scaled(value: float, base: float, names: tuple[str, ...]) -> str:
    power = 0
    while abs(value) >= base and power + 1 < len(names):
        value, power = value / base, power + 1
    return f"{_plain(value)}{names[power]}"


def _plain(value: float) -> str:
    """Three digits at most, without zeros at the end."""
    return f"{float(f'{value:.3g}'):.10f}".rstrip("0").rstrip(".") if value else "0"


def _seconds(value: float) -> str:
    if value == 0 or abs(value) >= 60:
        return _plain(value) + " s" if abs(value) < 3600 else f"{_plain(value / 3600)} h"
    for least, factor, name in ((1, 1, "s"), (1e-3, 1e3, "ms"), (1e-6, 1e6, "µs")):
        if abs(value) >= least:
            return f"{_plain(value * factor)} {name}"
    return f"{_plain(value * 1e9)} ns"


UNITS: dict[str, Callable[[float], str]] = {
    "short": lambda value: _scaled(value, 1000, ("", " K", " Mil", " Bil")),
    "s": _seconds,
    "percentunit": lambda value: f"{_plain(value * 100)}%",
    "bytes": lambda value: _scaled(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB")),
    "Bps": lambda value: _scaled(value, 1000, (" B/s", " kB/s", " MB/s", " GB/s")),
}
"""Grafana's name of a unit, and how a value in it is written."""


def marks(least: float, most: float, unit: str = "short", wanted: int = 4) -> list[float]:
    """Return about ``wanted`` values, round in their unit, from ``least`` or below it to ``most`` or above it."""
    if most <= least:
        most = least + 1
    base = 1024 if unit == "bytes" else 1000
    scale = base ** max(0, math.floor(math.log(most, base))) if most > 0 else 1
    raw = (most - least) / wanted / scale
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in _STEPS if power * factor >= raw * (1 - 1e-9)) * scale
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [number * step for number in range(first, last + 1)]
