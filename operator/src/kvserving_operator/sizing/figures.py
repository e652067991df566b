"""Figures in print: amounts with units, what a sizing starts from, and lines with their arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Basis = Literal["measured", "specified", "assumed", "given"]

_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
_WHOLE = 1_000_000


@dataclass(frozen=True)
class Input:
    """Something that the sizing starts from.

    ``basis`` says how far it is to be trusted: ``measured`` on this kind of device with this model, ``specified`` by a
    vendor, a model's publisher or vLLM, ``given`` by the user, or ``assumed``. ``replace`` is the option that puts a
    better figure in its place. ``caution`` says what is taken instead where the figure is not known, or a bound of it
    alone; it is empty for all others.
    """

    name: str
    text: str
    basis: Basis
    source: str
    replace: str = ""
    caution: str = ""


@dataclass(frozen=True)
class Line:
    """A result: ``value`` in its plain unit (bytes, seconds, tokens, ...), as ``text``, and how it came about.

    ``arithmetic`` is an expression whose value is ``value``, but for rounding; units in it are factors. It is empty
    where there is nothing to compute.
    """

    name: str
    value: float
    text: str
    arithmetic: str = ""


def number(value: float) -> str:
    """A number with three significant digits, or whole where it is small enough to be read."""
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def big(value: float, unit: str) -> str:
    """An amount with a decimal prefix: ``16.4 GB``, ``70.27 TFLOP``; small ones whole."""
    if abs(value) < _WHOLE:
        return f"{number(value)} {'bytes' if unit == 'B' else unit}"
    factor, prefix = next(step for step in _DECIMAL if abs(value) >= step[0])
    scaled = value / factor
    return f"{scaled:,.0f} {prefix}{unit}" if scaled >= 1000 else f"{scaled:.4g} {prefix}{unit}"


def seconds(value: float) -> str:
    """A time: milliseconds below a second."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def parameters(value: float) -> str:
    """A number of parameters, as models are called by."""
    return f"{value / 1e9:.3g} billion" if value >= 1e9 else f"{value / 1e6:.3g} million"
