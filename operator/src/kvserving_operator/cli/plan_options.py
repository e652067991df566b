"""Options of ``kvserving plan``: amounts with units, and facts of a model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from .bounded import ungrouped

if TYPE_CHECKING:
    from ..api.v1alpha1 import StatedFacts
    from ..sizing.models import Given

COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
BYTES = {
    "": 1.0,
    **{f"{prefix}B": 1e3**power for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}i": 2.0 ** (10 * power) for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}iB": 2.0 ** (10 * power) for power, prefix in enumerate("KMGT", 1)},
}
# Facts of the object's own (spec.model.facts), and what only a sizing needs.
_STATED = ("kind", "layers", "kvHeads", "headDim", "maxLength")
_GIVEN = {
    "parameters": "parameters",
    "activeParameters": "active",
    "weights": "weights",
    "hidden": "hidden",
    "heads": "heads",
    "kvBytesPerToken": "kv_token",
    "stateBytes": "state",
}
_IN_BYTES = ("weights", "kvBytesPerToken", "stateBytes")
# Of all others what a configuration may say.
_MOST = {
    **dict.fromkeys(("parameters", "activeParameters"), 1e15),
    **dict.fromkeys(("weights", "stateBytes"), 1e16),
    "kvBytesPerToken": 1e12,
}
_MOST_WHOLE = 10**15
_WHAT = "An address such as hf://owner/name, a model's folder, or an object's file."


def _shown(value: Any) -> str:
    from ..api.types import quoted

    return quoted(value)


class Sized(click.Command):
    """A command that tells all that is missing at once, each with what it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, which stops at the first that is missing."""
        written = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter:
            given = self.make_parser(ctx).parse_args(written)[0]
            missing = [
                param
                for param in self.get_params(ctx)
                if param.required and not isinstance(given.get(str(param.name)), str)
            ]
            if len(missing) < 2:
                raise
            told = (
                f"  {_first(param):<16} {param.help if isinstance(param, click.Option) else _WHAT}" for param in missing
            )
            raise click.UsageError("these are missing:\n" + "\n".join(told), ctx) from None


def _first(param: click.Parameter) -> str:
    return param.opts[0] if isinstance(param, click.Option) else str(param.metavar)


class Whole(click.ParamType[int]):
    """A whole number: ``4000`` or ``4,000``."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number."""
        from ..engines.written import whole

        found = whole(ungrouped(value))
        if found is None:
            self.fail(f"{_shown(value)} is no whole number: write it as 4000 or 4,000", param, ctx)
        if abs(found) > _MOST_WHOLE:
            self.fail(f"{_shown(value)} is too large: {_MOST_WHOLE:,} at most", param, ctx)
        return found


class Real(click.ParamType[float]):
    """A number: ``0.5``, ``12`` or ``1,200``."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        from ..engines.written import real

        found = real(ungrouped(value))
        if found is None:
            self.fail(f"{_shown(value)} is no number: write it as 0.5, 1200 or 1,200", param, ctx)
        return found


class Scaled(click.ParamType[float]):
    """A number with a unit of ``units``, in any case."""

    def __init__(self, name: str, units: Mapping[str, float], example: str) -> None:
        self.name = name
        self._units = units
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, with the unit multiplied in."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]+)?)\s*([A-Za-z]*)", ungrouped(value))
        folded = {unit.casefold(): factor for unit, factor in self._units.items()}
        factor = folded.get(found[2].casefold()) if found else None
        if found is None or factor is None:
            units = ", ".join(unit for unit in self._units if unit)
            self.fail(f"{_shown(value)} is no amount: write it as {self._example} (units: {units})", param, ctx)
        amount = float(found[1]) * factor
        if not math.isfinite(amount):
            self.fail(f"{_shown(value)} is too large", param, ctx)
        return amount


def model_facts(written: Sequence[str]) -> tuple[StatedFacts | None, Given]:
    """Facts that are given as NAME=VALUE: those of ``spec.model.facts``, and those of a sizing alone."""
    from pydantic import ValidationError

    from ..api.fault_words import translate
    from ..api.faults import Fault, InvalidSpec
    from ..api.v1alpha1 import StatedFacts
    from ..sizing.models import FACT, Given

    found: dict[str, Any] = {}
    for entry in written:
        name, _, value = entry.partition("=")
        if name not in (*_STATED, *_GIVEN):
            message = f"{_shown(name)} is no fact of a model: use {', '.join((*_STATED, *_GIVEN))}"
            raise InvalidSpec([Fault(FACT, message, entry)])
        if name in found:
            raise InvalidSpec([Fault(FACT, f"{name} is given twice: keep one", entry)])
        found[name] = value if name == "kind" else _amount(name, value)
    try:
        stated = StatedFacts.model_validate({name: found[name] for name in _STATED if name in found})
    except ValidationError as error:
        raise InvalidSpec(Fault(FACT, str(fault), fault.value) for fault in translate(error)) from None
    mine = {_GIVEN[name]: value for name, value in found.items() if name in _GIVEN}
    return (stated if stated.model_fields_set else None), Given(**mine)


def _amount(name: str, value: str) -> float | int:
    from ..api.faults import Fault, InvalidSpec
    from ..model_facts import MOST
    from ..sizing.models import FACT

    units, example = (BYTES, "16.4GB") if name in _IN_BYTES else (COUNTS, "8.2B")
    try:
        amount = Scaled("NUMBER", units, example).convert(value, None, None)
    except click.BadParameter as error:
        raise InvalidSpec([Fault(FACT, f"{name}: {error.message}", value)]) from None
    if amount > (most := _MOST.get(name, MOST)):
        raise InvalidSpec([Fault(FACT, f"{name}: {_shown(value)} is above {most:,.0f}, which no model has", value)])
    if name in ("parameters", "activeParameters", "weights") and amount >= 1:
        return amount
    if amount != int(amount) or (amount == 0 and name != "stateBytes"):
        raise InvalidSpec([Fault(FACT, f"{name}: {_shown(value)} must be a whole number above 0", value)])
    return int(amount)
