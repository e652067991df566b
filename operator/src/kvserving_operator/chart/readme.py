"""The table of values in the chart's ``README.md``, below a mark; what stands above it is written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from .annotated import Value

MARK = "<!-- Generated from values.yaml by kvserving_operator.chart; do not edit below. -->"


def render(readme: str, values: Sequence[Value]) -> str:
    """Return ``readme`` with the table of ``values`` below the mark."""
    head, _, _ = readme.partition(MARK)
    return f"{head}{MARK}\n\n" + "\n".join(_rows(values)) + "\n"


def _rows(values: Sequence[Value]) -> Iterator[str]:
    yield "| Value | Default | Meaning |"
    yield "|---|---|---|"
    for value in values:
        yield from _row(value)


def _row(value: Value) -> Iterator[str]:
    if value.keys:
        yield f"| **`{value.name}`** | | {value.description} |"
        for inner in value.keys:
            yield from _row(inner)
        return
    choice = value.extra.get("enum")
    among = f" One of {', '.join(f'`{one}`' for one in choice)}." if choice else ""
    yield f"| `{value.name}` | {_default(value.default)} | {_escaped(value.description + among)} |"


def _default(value: Any) -> str:
    return f"`{_escaped(json.dumps(value, ensure_ascii=False))}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
