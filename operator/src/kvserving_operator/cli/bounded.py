"""Types of options that take a number or a time within bounds, with words for what is none."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_ONE = re.compile(r"([0-9]{1,400}(?:\.[0-9]{1,12})?)(ms|s|m|h|)")
_PARTS = re.compile(r"(?=[0-9])(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_MOST = 9999 * 3600.0


def _refusal(value: Any, kind: str, least: float | None, most: float | None) -> str:
    from ..api.types import quoted

    bounds = f"from {least:g} to {most:g}" if most is not None else f"of at least {least or 0:g}"
    return f"{quoted(value)} is no {kind}: write one {bounds}"


class Number(click.FloatRange):
    """A finite number of at least ``min``, and of at most ``max`` where that is given."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; ``click.BadParameter`` for what is none, or is out of bounds."""
        from ..engines.written import real

        if (found := real(str(value).strip())) is None:
            self.fail(_refusal(value, "number", self.min, self.max), param, ctx)
        return super().convert(found, param, ctx)


class Count(click.IntRange):
    """A whole number of at least ``min``, and of at most ``max`` where that is given."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; ``click.BadParameter`` for what is none, or is out of bounds."""
        from ..engines.written import whole

        if (found := whole(str(value).strip())) is None:
            self.fail(_refusal(value, "whole number", self.min, self.max), param, ctx)
        return super().convert(found, param, ctx)


def ungrouped(value: Any) -> str:
    """The number as written, without commas between groups of three digits: ``plan`` prints them itself."""
    text = str(value).strip()
    grouped = re.match(r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])", text)
    return text if grouped is None else grouped[0].replace(",", "") + text[grouped.end() :]


class Time(click.ParamType[float]):
    """A time of at least ``min`` seconds: ``600`` or ``600s``, ``10m``, ``1h30m``, ``30ms``.

    ``whole`` takes whole seconds alone, ``unit`` no number without a unit but 0: for what others tell in milliseconds.
    """

    name = "TIME"

    def __init__(self, min: float = 0, *, whole: bool = False, unit: bool = False) -> None:
        self.min = min
        self._whole = whole
        self._unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        from ..api.types import quoted

        found = float(value) if isinstance(value, (int, float)) else self._read(ungrouped(value))
        if found is None:
            forms = "a number with its unit, such as 30ms, 1s, 10m or 1h" if self._unit else "600 or 600s, 10m, 1h30m"
            self.fail(f"{quoted(value)} is no time: write {forms}", param, ctx)
        if found < self.min:
            self.fail(f"{quoted(value)} is too short: {self.min:g}s at least", param, ctx)
        if found > _MOST:
            self.fail(f"{quoted(value)} is too long: 9999h at most", param, ctx)
        if self._whole and found != int(found):
            self.fail(f"{quoted(value)} has a part of a second: write whole ones, such as 15s", param, ctx)
        return int(found) if self._whole else found

    def _read(self, text: str) -> float | None:
        if one := _ONE.fullmatch(text):
            lacks = self._unit and not one[2] and float(one[1]) != 0
            return None if lacks else float(one[1]) * _UNITS[one[2]]
        if parts := _PARTS.fullmatch(text):
            hours, minutes, seconds = (int(part or 0) for part in parts.groups())
            return float(3600 * hours + 60 * minutes + seconds)
        return None
