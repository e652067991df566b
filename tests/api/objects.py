"""Objects for the tests of the API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.load import inspect_file
from kvserving_operator.api.v1alpha1 import KVServing

HEAD = "apiVersion: kvserving.dev/v1alpha1\nkind: KVServing\nmetadata: {name: qwen}\n"
SPEC = "spec: {model: {uri: 'hf://Qwen/Qwen3-8B'}, prefill: {}, decode: {}}\n"
"""The two halves of the same small object as text."""


def load_file(path: Path) -> KVServing:
    """Return the object in the file at ``path``; raises ``InvalidSpec`` with every fault of it."""
    reading = inspect_file(path)
    if reading.faults or reading.serving is None:
        raise InvalidSpec(reading.faults, reading.serving)
    return reading.serving


def serving(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a small valid object with ``changes``: values by path, ``None`` removes a field."""
    obj: dict[str, Any] = {
        "apiVersion": "kvserving.dev/v1alpha1",
        "kind": "KVServing",
        "metadata": {"name": "qwen"},
        "spec": {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "prefill": {}, "decode": {}},
    }
    for path, value in (changes or {}).items():
        put(obj, path, value)
    return obj


def put(obj: dict[str, Any], path: str, value: Any) -> None:
    """Set the field at ``path`` (``spec.a.b`` or ``spec.a[0].b``), or remove it for ``None``."""
    *parents, last = re.findall(r"[^.\[\]]+", path)
    node: Any = obj
    for part in parents:
        node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
    if value is None:
        node.pop(last, None)
    else:
        node[last] = value
