"""Figures in print: times, what a sizing starts from, and lines with their arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Basis = Literal["measured", "specified", "assumed", "given"]


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


def seconds(value: float) -> str:
    """A time: milliseconds below a second."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def parameters(value: float) -> str:
    """A number of parameters, as models are called by."""
    return f"{value / 1e9:.3g} billion" if value >= 1e9 else f"{value / 1e6:.3g} million"
