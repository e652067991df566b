"""All validation rules, and their evaluation outside the apiserver."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from . import rules_args, rules_env, rules_services, rules_spec
from .faults import Fault
from .rule import Rule

RULES: tuple[Rule, ...] = (
    *rules_spec.OBJECT,
    *rules_spec.SPEC,
    *rules_spec.MODEL,
    *rules_spec.ROLE,
    *rules_services.RULES,
    *rules_args.RULES,
    *rules_env.RULES,
)
"""Every rule; the CRD holds exactly these."""


def violations(
    obj: Mapping[str, Any], *, broken: Iterable[str] = (), rules: Iterable[Rule] = RULES
) -> tuple[Fault, ...]:
    """Return a fault for every one of ``rules`` that ``obj`` violates, in their order.

    ``obj`` is a whole object of plain JSON values without unknown fields and nulls.
    Rules that read a path in ``broken`` (or inside one, or around one) are left out,
    since their answer would only repeat that fault. Never raises for an object whose
    unbroken parts have the types of the schema; a rule that cannot be decided counts as violated.
    """
    marks = tuple(broken)
    values: dict[str, _Value] = {}
    return tuple(fault for rule in rules for fault in _check(rule, obj, marks, values))


def _check(rule: Rule, obj: Mapping[str, Any], broken: tuple[str, ...], values: dict[str, _Value]) -> Iterator[Fault]:
    for path, value in _places(obj, rule.at):
        reads = (path + read.removeprefix(rule.at) for read in rule.reads) if broken else ()
        if any(_overlap(read, mark) for read in reads for mark in broken):
            continue
        if path not in values:
            values[path] = _Value(value)
        if values[path].satisfies(rule.cel):
            continue
        message = rule.message
        if rule.message_cel is not None:
            told = _program(rule.message_cel)(values[path].cel)
            message = str(told) if isinstance(told, str) else message
        blamed = ".".join(part for part in (path, rule.field) if part)
        message = message.removeprefix(f"{blamed} ")
        if rule.element is not None:
            blamed += _position(value, rule.field, rule.element)
        yield Fault(path=blamed, message=message, value=None)


def _position(value: Any, field: str | None, pattern: str) -> str:
    """``[i]`` of the first entry with ``pattern`` in the list at ``field``; empty where none has it."""
    for name in field.split(".") if field else ():
        value = value.get(name, ())
    return next((f"[{i}]" for i, entry in enumerate(value) if re.search(pattern, entry)), "")


def _places(obj: Any, at: str) -> Iterator[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("", obj)]
    for part in at.split(".") if at else ():
        name, each = part.removesuffix("[*]"), part.endswith("[*]")
        found = [
            (f"{path}.{name}" if path else name, value[name])
            for path, value in found
            if isinstance(value, Mapping) and name in value
        ]
        if each:
            found = [
                (f"{path}[{i}]", item)
                for path, value in found
                if isinstance(value, (list, tuple))
                for i, item in enumerate(value)
            ]
    return iter(found)


def _overlap(one: str, other: str) -> bool:
    return one == other or _inside(one, other) or _inside(other, one)


def _inside(path: str, outer: str) -> bool:
    return not outer or (path.startswith(outer) and path[len(outer) : len(outer) + 1] in (".", "["))


class _Value:
    """One value of an object, for all rules at its place."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @cached_property
    def cel(self) -> Any:
        """The value as rules see it."""
        from celpy.adapter import json_to_cel

        return json_to_cel(self._value)

    @cached_property
    def _digest(self) -> bytes:
        # Not the text itself: the memory would keep what users wrote, secrets by mistake included.
        return hashlib.sha256(json.dumps(self._value, sort_keys=True).encode()).digest()

    def satisfies(self, expression: str) -> bool:
        """Whether ``expression`` is true; the answer for an equal value is remembered."""
        key = (expression, self._digest)
        answer = _ANSWERS.get(key)
        if answer is None:
            if len(_ANSWERS) >= _MOST_ANSWERS:
                _ANSWERS.clear()
            answer = _ANSWERS[key] = _program(expression)(self.cel) is True
        return answer


_MOST_ANSWERS = 20_000
_ANSWERS: dict[tuple[str, bytes], bool] = {}


def _program(expression: str) -> Callable[[Any], Any]:
    # celpy takes a third of a second to import, and commands that check nothing do without it.
    from . import cel

    return cel.program(expression)
