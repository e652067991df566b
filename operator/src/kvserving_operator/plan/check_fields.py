"""Checks of a pod template's fields and their types, as the apiserver's schema has them.

The table comes from the Kubernetes client's models (``control.pod_fields`` writes it). Which
fields may stand together and which values they may have is for the other checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from ..api.fault_words import suggestion
from ..api.faults import Fault
from ..api.parse import join
from ..api.types import quoted
from . import check_resources

_ROOT = "PodTemplateSpec"
_MOST = 2**31 - 1
# 64 bits wide; every other number is held in 32 bits or bounded by them.
_WIDE = frozenset({"tolerationSeconds"})
# What is in these may be a secret, or is not ours to repeat.
_HIDDEN = frozenset({"env", "args", "command", "annotations", "httpHeaders"})
_BY_NAME = frozenset({"containers", "initContainers", "volumes"})
_LISTED = 12
_WORDS = {"text": "texts", "integer": "whole numbers", "quantity": "amounts"}
# The user's part need not repeat what is rendered.
_MERGED = (
    "template.spec.containers",
    *(f".containers[engine].{probe}Probe.httpGet.port" for probe in ("startup", "readiness", "liveness")),
)


@cache
def table() -> Mapping[str, Mapping[str, str]]:
    """The fields of each type in a pod template: name and type, as ``control.pod_fields`` describes them."""
    text = resources.files(__package__).joinpath("assets", "pod_fields.json").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, str]] = json.loads(text)
    return found


def faults(user: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """Faults in fields and types of ``user``, a template of any form at ``path``. Nulls count as absent."""
    yield from _object(user, _ROOT, path, hidden=False)


def label(item: Any, index: int) -> str | int:
    """How an entry of a list that is keyed by name is shown: by its name where it has one."""
    name = item.get("name") if isinstance(item, Mapping) else None
    return name[:63] if isinstance(name, str) and name else index


def values(user: Mapping[str, Any], path: str) -> Iterator[tuple[tuple[str, str], Any, str]]:
    """Every text and number of ``user`` in a known field: the field's type and name, the value and its path."""

    def visit(item: Any, place: tuple[str, str], kind: str, where: str) -> Iterator[tuple[tuple[str, str], Any, str]]:
        if kind.endswith("[]"):
            by_name = place[1] in _BY_NAME
            for index, entry in enumerate(item if isinstance(item, list) else ()):
                shown = label(entry, index) if by_name else index
                yield from visit(entry, place, kind.removesuffix("[]"), f"{where}[{shown}]")
        elif kind in table():
            for key, member in item.items() if isinstance(item, Mapping) else ():
                if key in table()[kind]:
                    yield from visit(member, (kind, key), table()[kind][key].removesuffix("!"), join(where, key))
        elif isinstance(item, (str, int, float)) and not isinstance(item, bool):
            yield place, item, where

    yield from visit(user, ("", ""), _ROOT, path)


def _object(value: Mapping[str, Any], kind: str, path: str, *, hidden: bool) -> Iterator[Fault]:
    fields = table()[kind]
    hints: list[str] = []
    for key, member in value.items():
        where = join(path, str(key))
        if str(key).startswith("$"):
            message = "is a directive of a patch, and a template is none: leave it out; null keeps what is rendered"
            yield Fault(f"{path}.{key}", message, str(key))
        elif key not in fields:
            hints.append(_hint(str(key), fields))
            yield Fault(where, f"unknown field{hints[-1]}", str(key)[:60])
        elif member is not None:
            yield from _value(member, fields[key].removesuffix("!"), where, hidden=hidden or key in _HIDDEN)
    for key, written in fields.items():
        where = join(path, key)
        missing = written.endswith("!") and value.get(key) is None and not where.endswith(_MERGED)
        if missing and f"; did you mean {key}?" not in hints:
            yield Fault(where, "is required: Kubernetes takes none without it")


def _hint(key: str, fields: Mapping[str, str]) -> str:
    hint = suggestion(key, fields)
    return (
        hint if "did you mean" in hint or len(fields) <= _LISTED else "; kubectl explain pod.spec lists those there are"
    )


def _value(value: Any, kind: str, path: str, *, hidden: bool) -> Iterator[Fault]:
    if kind.endswith("[]"):
        if not isinstance(value, list):
            yield Fault(path, f"must be a list of {_plural(kind.removesuffix('[]'))}, not {_shown(value, hidden)}")
            return
        by_name = path.rpartition(".")[2] in _BY_NAME
        for index, item in enumerate(value):
            yield from _value(
                item, kind.removesuffix("[]"), f"{path}[{label(item, index) if by_name else index}]", hidden=hidden
            )
    elif kind.endswith("{}"):
        if not isinstance(value, Mapping):
            yield Fault(path, f"must be a map of {_plural(kind.removesuffix('{}'))}, not {_shown(value, hidden)}")
            return
        for key, member in value.items():
            if str(key).startswith("$"):
                yield Fault(f"{path}.{key}", "is a directive of a patch, and a template is none: leave it out")
            elif member is not None:
                yield from _value(member, kind.removesuffix("{}"), join(path, str(key)), hidden=hidden)
    elif kind in table():
        if isinstance(value, Mapping):
            yield from _object(value, kind, path, hidden=hidden)
        else:
            names = ", ".join([*table()[kind]][:3])
            yield Fault(path, f"must be an object with fields such as {names}, not {_shown(value, hidden)}")
    elif (problem := _problem(value, kind, path, _shown(value, hidden))) is not None:
        yield Fault(path, problem)


def _problem(value: Any, kind: str, path: str, shown: str) -> str | None:
    """Why ``value`` is none of a plain type, and the way out; None where it is one."""
    if kind == "text":
        hint = ": put it in quotes" if isinstance(value, (bool, int, float)) else ""
        return None if isinstance(value, str) else f"{shown} is not text{hint}"
    if kind == "boolean":
        hint = ": remove the quotes" if value in ("true", "false") else ""
        return None if isinstance(value, bool) else f"{shown} is not true or false{hint}"
    if kind == "integer":
        return _number_problem(value, path, shown)
    if kind == "integer or text":
        whole = isinstance(value, int) and not isinstance(value, bool)
        return None if whole or isinstance(value, str) else f"{shown} is neither a whole number nor text"
    if kind == "quantity":
        return (
            None if check_resources.amount(value) is not None else f"{shown} is not an amount such as 4, 500m or 64Gi"
        )
    return None


def _number_problem(value: Any, path: str, shown: str) -> str | None:
    if isinstance(value, float):
        return f"{shown} has a fraction: a pod template has whole numbers here"
    if isinstance(value, bool) or not isinstance(value, int):
        digits = isinstance(value, str) and value.removeprefix("-").isdecimal()
        return f"{shown} is not a whole number{': remove the quotes' if digits else ''}"
    if abs(value) > _MOST and path.rpartition(".")[2] not in _WIDE:
        return f"{shown} is more than {_MOST}, which is as much as Kubernetes takes"
    return None


def _plural(kind: str) -> str:
    return _WORDS.get(kind, "objects")


def _shown(value: Any, hidden: bool) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    if hidden:
        return "a number" if isinstance(value, (int, float)) and not isinstance(value, bool) else "the value"
    return str(value).lower() if isinstance(value, bool) else quoted(value)
