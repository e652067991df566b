"""Sizings for tests, and the value of an arithmetic line."""

from __future__ import annotations

import math
import re
from typing import Any

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.v1alpha1 import KVServing, KVSettings
from kvserving_operator.model_facts import lookup
from kvserving_operator.sizing import objects
from kvserving_operator.sizing.demand import Demand, Measured
from kvserving_operator.sizing.devices import device
from kvserving_operator.sizing.figures import Line
from kvserving_operator.sizing.models import Model, resolve
from kvserving_operator.sizing.size import Sizing, size

QWEN = "hf://Qwen/Qwen3-8B"
_UNITS = {"": 1.0, "bytes": 1.0, "ms": 1e-3, "s": 1.0, "billion": 1e9, "million": 1e6, "Gi": 2.0**30, "GiB": 2.0**30}
_UNITS |= {
    f"{prefix}{unit}": factor for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)) for unit in ("B", "FLOP")
}
_NUMBER = re.compile(r"(?<![A-Za-z])(?P<number>\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?)(?: ?(?P<unit>[A-Za-z]+)(?:/s)?)?")
_FUNCTIONS = {"ceil": math.ceil, "floor": math.floor, "min": min, "max": max}


def model(uri: str = QWEN, **kv: Any) -> Model:
    facts = lookup(uri)
    assert facts is not None
    return resolve(uri, facts, KVSettings(**kv))


def sizing(uri: str = QWEN, on: str = "h100", *, taken: Measured | None = None, **asked: Any) -> Sizing:
    demand = Demand(**{"prompt": 4000, "output": 300, "rate": 2.5, **asked})
    return size(model(uri), device(on), demand, taken=taken or Measured())


def refusal(uri: str, on: str, **asked: Any) -> str:
    """Why there is no such sizing; empty where there is one."""
    try:
        sizing(uri, on, **asked)
    except InvalidSpec as error:
        return str(error)
    return ""


def body(uri: str, found: Sizing) -> dict[str, Any]:
    made, _ = objects.sized(objects.new(uri, "tested"), found)
    return made


def parsed(made: dict[str, Any]) -> KVServing:
    return KVServing.model_validate(made)


def value(arithmetic: str) -> float:
    """What an arithmetic line comes to: units are factors, and words without a number before them mean nothing."""
    text = arithmetic.replace(" x ", " * ").replace("^", "**").replace("10% of L1", "")

    def amount(found: re.Match[str]) -> str:
        factor = _UNITS.get(found["unit"] or "", 1.0)
        return f"{float(found['number'].replace(',', '')) * factor!r}"

    # In min(a, b) a comma with a space behind it parts two values.
    text = _NUMBER.sub(amount, text)
    for word in {*re.findall(r"\b[A-Za-z]\w*", text)} - {*_FUNCTIONS}:
        text = re.sub(rf"\b{word}\b", "", text)
    return float(eval(text, {"__builtins__": {}}, _FUNCTIONS))


def lines(found: Sizing) -> dict[str, Line]:
    return {line.name: line for line in found.lines}
