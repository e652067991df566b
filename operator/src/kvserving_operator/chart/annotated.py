"""Reads a chart's ``values.yaml`` with its comments: each key's description, default, and what bounds it.

The comment right above a key is its description. A line ``# @schema {...}`` in it adds to the key's JSON schema. An
object whose keys have comments of their own is a section; any other object is one value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

_MARK = "@schema "


class Unannotated(ValueError):
    """The file lacks something; the message names line and key."""


@dataclass(frozen=True)
class Value:
    """One key of the file. ``keys`` is empty for a value, and has the keys of a section."""

    path: tuple[str, ...]
    description: str
    default: Any
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What its ``@schema`` line says."""
    keys: tuple[Value, ...] = ()

    @property
    def name(self) -> str:
        """The path as ``helm --set`` takes it."""
        return ".".join(self.path)

    def leaves(self) -> Iterator[Value]:
        """Yield the values of this section, or the value itself."""
        if not self.keys:
            yield self
        for value in self.keys:
            yield from value.leaves()


def read(text: str) -> tuple[Value, ...]:
    """Return the keys of ``text`` in their order. Raises ``Unannotated``."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise Unannotated("the values are no map")
    return _keys(root, text.splitlines(), ())


def _keys(node: yaml.MappingNode, lines: Sequence[str], path: tuple[str, ...]) -> tuple[Value, ...]:
    found = []
    for key, value in node.value:
        here = (*path, str(key.value))
        description, extra = _comment(lines, key.start_mark.line, ".".join(here))
        keys: tuple[Value, ...] = ()
        if isinstance(value, yaml.MappingNode) and not extra:
            keys = _keys(value, lines, here)
            if not keys:
                raise Unannotated(f"line {key.start_mark.line + 1}: {'.'.join(here)} is empty: name a shape by @schema")
        found.append(Value(here, description, _plain(value), extra, keys))
    return tuple(found)


def _comment(lines: Sequence[str], line: int, name: str) -> tuple[str, dict[str, Any]]:
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    told, extra = [], {}
    for number, text in enumerate((text.strip().removeprefix("#").strip() for text in lines[first:line]), first + 1):
        if not text.startswith(_MARK):
            told.append(text)
            continue
        extra = yaml.safe_load(text.removeprefix(_MARK))
        if not isinstance(extra, dict):
            raise Unannotated(f"line {number}: @schema of {name} is no map")
    if not any(told):
        raise Unannotated(f"line {line + 1}: {name} has no comment")
    return " ".join(told), extra


def _plain(node: yaml.Node) -> Any:
    return yaml.SafeLoader("").construct_object(node, deep=True)
