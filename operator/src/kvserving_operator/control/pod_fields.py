"""The table of the fields that a pod template may have, made from the Kubernetes client's models.

The plan checks users' templates against it without importing a client. A line of the table is a
type: its fields, each with the name of a type and a final ``!`` where it is required. Types other
than those of the table are ``text``, ``integer``, ``boolean``, ``quantity``, ``integer or text``
and ``any``; ``[]`` after a type stands for a list, ``{}`` for a map of it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence

from kubernetes.client import models

from .. import generated

FILE_NAME = "pod_fields.json"
ROOT = "PodTemplateSpec"

_PLAIN = {"str": "text", "int": "integer", "bool": "boolean", "datetime": "text"}
# The client calls all three of them text or object.
_QUANTITIES = {
    ("EmptyDirVolumeSource", "sizeLimit"),
    ("PodSpec", "overhead"),
    ("ResourceFieldSelector", "divisor"),
    *((f"{of}ResourceRequirements", kind) for of in ("", "Volume") for kind in ("limits", "requests")),
}
_INTEGER_OR_TEXT = {("HTTPGetAction", "port"), ("TCPSocketAction", "port")}
_ANY = {("ManagedFieldsEntry", "fieldsV1")}
# Named as required, but the apiserver takes the type's zero value for them.
_OPTIONAL = {
    ("HTTPHeader", "value"),
    ("ISCSIVolumeSource", "lun"),
    ("PreferredSchedulingTerm", "preference"),
    ("ScaleIOVolumeSource", "secretRef"),
    ("Sysctl", "value"),
}


def table() -> dict[str, dict[str, str]]:
    """Return the fields of every type that a pod template holds, by the type's name.

    Raises ``TypeError`` for a field of a type that the table has no name for.
    """
    found: dict[str, dict[str, str]] = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        model = _model(name)
        found[name] = {}
        infos = model.model_fields.items()
        needed = {model.attribute_map.get(key) or info.alias or key for key, info in infos if info.is_required()}
        for attribute, written in model.openapi_types.items():
            field = model.attribute_map[attribute]
            kind, nested = _kind(name, field, written)
            required = field in needed and (name, field) not in _OPTIONAL
            found[name][field] = kind + ("!" if required else "")
            waiting += [nested] if nested is not None else []
    return {name: dict(sorted(fields.items())) for name, fields in sorted(found.items())}


def _model(name: str) -> type[models.V1PodSpec]:
    found: type[models.V1PodSpec] = getattr(models, f"V1{name}", None) or getattr(models, f"CoreV1{name}")
    return found


def _kind(name: str, field: str, written: str) -> tuple[str, str | None]:
    """The table's name of a type that the client writes as ``written``, and the type of the table in it."""
    if (name, field) in _INTEGER_OR_TEXT:
        return "integer or text", None
    if (name, field) in _ANY:
        return "any", None
    for form, mark in ((r"List\[(.+)\]", "[]"), (r"Dict\[str, (.+)\]", "{}")):
        if match := re.fullmatch(form, written):
            kind, nested = _kind(name, field, match[1])
            return kind + mark, nested
    if (name, field) in _QUANTITIES:
        return "quantity", None
    if written in _PLAIN:
        return _PLAIN[written], None
    if match := re.fullmatch(r"(?:Core)?V1(\w+)", written):
        return match[1], match[1]
    raise TypeError(f"{name}.{field} is {written}, which the table has no name for")


def render() -> str:
    """Return the text of the table's file, a line for each type."""
    lines = (f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in table().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the table's file in the named folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvserving_operator.control.pod_fields", description="Pod fields.")
    generated.actions(parser)
    return generated.write_or_check(FILE_NAME, render(), parser.parse_args(arguments), "the Kubernetes client's models")


if __name__ == "__main__":
    sys.exit(main())
