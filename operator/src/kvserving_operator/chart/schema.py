"""The JSON schema of a chart's values: closed objects, a type and a bound for everything.

A ``@schema`` line may use two words beside JSON schema's: ``$ref`` names one of ``SHAPES``, ``pod`` a type of the
table of pod fields (``plan.template``'s), such as ``Toleration``. Both are written out where they stand: not every Helm
follows references alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from ..api.base import LABEL_KEY_PATTERN, NAMESPACE_PATTERN
from .annotated import Unannotated, Value

_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
_QUANTITY = {
    "type": ["string", "integer", "number"],
    "pattern": "^[0-9]+(\\.[0-9]+)?(m|[kMGTPE]i?)?$",
    "minimum": 0,
}
_PLAIN: Mapping[str, Mapping[str, Any]] = {
    "text": {"type": "string", "maxLength": 4096},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "quantity": _QUANTITY,
    "integer or text": {"type": ["integer", "string"]},
    "any": {},
}
_OBJECT = {"type": "object", "maxProperties": 64}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "labels": {
        **_OBJECT,
        "propertyNames": {"pattern": LABEL_KEY_PATTERN, "maxLength": 317},
        "additionalProperties": {
            "type": "string",
            "maxLength": 63,
            "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        },
    },
    "annotations": {
        **_OBJECT,
        "propertyNames": {"pattern": LABEL_KEY_PATTERN, "maxLength": 317},
        "additionalProperties": {"type": "string", "maxLength": 65536},
    },
    "repository": {
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "pattern": "^([A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*$",
    },
    "tag": {"type": "string", "maxLength": 128, "pattern": "^([A-Za-z0-9_][-A-Za-z0-9_.]*)?$"},
    "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "namespace": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": NAMESPACE_PATTERN},
    "optionalName": {
        "type": "string",
        "maxLength": 253,
        "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$",
    },
    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "cidr": {"type": "string", "maxLength": 49, "pattern": "^[0-9A-Fa-f.:]+/[0-9]{1,3}$"},
    "egress": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "to": {"type": "array", "items": {"type": "object"}},
            "ports": {"type": "array", "items": {"type": "object"}},
        },
    },
}
"""Shapes that several values have."""

_FROM_A_PARENT = {
    "global": {"type": "object", "description": "Helm hands it to every chart of a parent; not used."},
    "enabled": {"type": "boolean", "description": "For the condition of a parent chart's dependency; not used."},
}


def render(values: Sequence[Value]) -> str:
    """Return the text of ``values.schema.json``. Raises ``Unannotated`` for a value without a type or a bound."""
    root = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart kvserving-operator",
        **_section(values),
    }
    root["properties"] = {**root["properties"], **_FROM_A_PARENT}
    return json.dumps(root, indent=2, ensure_ascii=False) + "\n"


def _section(values: Sequence[Value]) -> dict[str, Any]:
    made = {value.path[-1]: _value(value) for value in values}
    section: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": made}
    required = [value.path[-1] for value in values if not _may_lack(value, made[value.path[-1]])]
    return {**section, "required": required} if required else section


def _may_lack(value: Value, made: Mapping[str, Any]) -> bool:
    """Whether nothing at all, which `null` makes of a default, is as good as an empty text, list or map."""
    if value.keys or made["type"] in ("boolean", "integer") or "enum" in made:
        return False
    if made["type"] == "string":
        return not made.get("minLength") and re.search(made.get("pattern", ""), "") is not None
    return not made.get("minItems")


def _value(value: Value) -> dict[str, Any]:
    if value.keys:
        return {"description": value.description, **_section(value.keys)}
    kind = _TYPES.get(type(value.default))
    if kind is None:
        raise Unannotated(f"{value.name} has the default {value.default!r}, which has no type in the schema")
    made = {"description": value.description, "type": kind, **_written_out(value.extra, value.name)}
    if kind == "string" and "enum" not in made and not {"maxLength", "pattern"} & made.keys():
        raise Unannotated(f"{value.name} is text without a bound")
    if kind == "integer" and not {"minimum", "maximum"} <= made.keys():
        raise Unannotated(f"{value.name} is a number without bounds")
    if kind == "array" and not {"items", "maxItems"} <= made.keys():
        raise Unannotated(f"{value.name} is a list without items and maxItems")
    if kind == "object" and not {"properties", "additionalProperties"} & made.keys():
        raise Unannotated(f"{value.name} is an object without a shape")
    return made


def _written_out(extra: Mapping[str, Any], name: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, told in extra.items():
        if key == "$ref":
            if told not in SHAPES:
                raise Unannotated(f"{name}: there is no shape {told!r}")
            made |= SHAPES[told]
        elif key == "pod":
            made |= _pod(told)
        elif isinstance(told, Mapping):
            made[key] = _written_out(told, name)
        else:
            made[key] = told
    return made


def _pod(kind: str) -> dict[str, Any]:
    """Return the schema of a type of the table of pod fields, or of a kind that the table writes as text."""
    if kind.endswith("[]"):
        return {"type": "array", "items": _pod(kind[:-2])}
    if kind.endswith("{}"):
        return {"type": "object", "additionalProperties": _pod(kind[:-2])}
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    fields = _pod_fields()[kind]
    made: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _pod(told.removesuffix("!")) for name, told in fields.items()},
    }
    if required := [name for name, told in fields.items() if told.endswith("!")]:
        made["required"] = required
    return made


def _pod_fields() -> Mapping[str, Mapping[str, str]]:
    file = resources.files("kvserving_operator.plan") / "assets" / "pod_fields.json"
    table: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))
    return table
