"""Pod templates with every field that there is, for tests that change one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvserving_operator.control import pod_fields

TABLE = pod_fields.table()


def filled(kind: str, depth: int) -> Any:
    """A value of ``kind`` with every field set, as deep as ``depth``."""
    kind = kind.removesuffix("!")
    if kind.endswith("[]"):
        return [filled(kind.removesuffix("[]"), depth)]
    if kind.endswith("{}"):
        return {"a": filled(kind.removesuffix("{}"), depth)}
    plain = {"text": "a", "integer": 1, "boolean": False, "quantity": "1", "integer or text": 1, "any": {}}
    if kind in plain:
        return plain[kind]
    return {
        key: filled(of, depth - 1)
        for key, of in TABLE[kind].items()
        if depth > 0 or of.endswith("!") or of.removesuffix("!") in plain
    }


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every member of ``value``, at every depth."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*path, key)
        yield from leaves(member, (*path, key))
