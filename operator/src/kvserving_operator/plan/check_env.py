"""Checks of environment variables as the apiserver makes them when it gets the pod."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..api import base
from ..api.faults import Fault
from . import template
from .context import Context

_KEYS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "secretKeyRef": (frozenset({"name", "key"}), frozenset({"optional"})),
    "configMapKeyRef": (frozenset({"name", "key"}), frozenset({"optional"})),
    "fieldRef": (frozenset({"fieldPath"}), frozenset({"apiVersion"})),
    "resourceFieldRef": (frozenset({"resource"}), frozenset({"containerName", "divisor"})),
}
"""Sources with the fields that each needs and those it may have."""

_FIELD = re.compile(
    r"metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(podIPs?|hostIPs?)"
)
_RESOURCE = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-[0-9A-Za-z]+)")
_NAME = re.compile(base.NAME_PATTERN)
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def faults(ctx: Context) -> Iterator[Fault]:
    """Faults in the sources of ``env`` of the engine and of each role."""
    for section, variables in (("engine", ctx.spec.engine.env), *((role, ctx.role(role).env) for role in ctx.roles)):
        for index, variable in enumerate(variables):
            if variable.value_from is not None:
                path = f"spec.{section}.env[{index}].valueFrom"
                yield from _source(variable.name, variable.value_from, path)


def of_container(container: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """Faults in the form of a template's variables; those that are no maps are found elsewhere."""
    items = container.get("env")
    seen: set[str] = set()
    for index, variable in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(variable, Mapping):
            continue
        where, name = f"{path}.env[{index}]", variable.get("name")
        if not isinstance(name, str) or not name or "=" in name or not name.isprintable():
            yield Fault(where, "a variable needs a name without '='")
            continue
        if name in seen:
            yield Fault(where, f"{name} is given twice: keep one entry", name)
        seen.add(name)
        value, source = variable.get("value"), variable.get("valueFrom")
        if value is not None and not isinstance(value, str):
            yield Fault(f"{where}.value", f"the value of {name} is not text: put it in quotes")
        if value is not None and source is not None:
            yield Fault(where, f"{name} has both value and valueFrom: keep one", name)
        elif source is not None:
            yield from _source(name, source, f"{where}.valueFrom")


def _source(name: str, source: Any, path: str) -> Iterator[Fault]:
    if not isinstance(source, Mapping):
        yield Fault(path, f"the source of {name} must be an object such as secretKeyRef: {{name: a, key: b}}")
        return
    given = [key for key, value in source.items() if value is not None]
    known = ", ".join(sorted(template.ENV_SOURCES))
    unknown = [str(key) for key in given if key not in template.ENV_SOURCES]
    if unknown:
        yield Fault(path, f"{unknown[0][:60]} is no source of a variable: use one of {known}", unknown[0][:60])
    elif len(given) != 1:
        count = f"names {len(given)} sources ({', '.join(given)})" if given else "names no source"
        yield Fault(path, f"{count} for {name}: give exactly one of {known}")
    else:
        yield from _reference(given[0], source[given[0]], f"{path}.{given[0]}")


def _reference(kind: str, fields: Any, path: str) -> Iterator[Fault]:
    needed, optional = _KEYS[kind]
    if not isinstance(fields, Mapping):
        yield Fault(path, f"must be an object with {' and '.join(sorted(needed))}")
        return
    missing = sorted(key for key in needed if not isinstance(fields.get(key), str) or not fields[key])
    if missing:
        yield Fault(path, f"needs {' and '.join(missing)}, as text")
        return
    unknown = sorted(str(key) for key in fields if key not in needed | optional)
    if unknown:
        names = ", ".join(sorted(needed | optional))
        yield Fault(path, f"{unknown[0][:60]} is no field of {kind}: known are {names}", unknown[0][:60])
    if "name" in needed and not _NAME.fullmatch(fields["name"]):
        yield Fault(f"{path}.name", f"{fields['name'][:60]!r} is not {base.PATTERN_WORDS[base.NAME_PATTERN]}")
    if "key" in needed and not _DATA_KEY.fullmatch(fields["key"]):
        yield Fault(f"{path}.key", f"{fields['key'][:60]!r} is no key: use letters, digits, dots, dashes, underscores")
    if "fieldPath" in needed and not _FIELD.fullmatch(fields["fieldPath"]):
        message = (
            "is no field that a pod gives its containers: use one such as metadata.name, spec.nodeName, status.podIP"
        )
        yield Fault(f"{path}.fieldPath", f"{fields['fieldPath'][:60]!r} {message}")
    if "resource" in needed and not _RESOURCE.fullmatch(fields["resource"]):
        message = "is no resource that a pod gives its containers: use one such as limits.cpu or requests.memory"
        yield Fault(f"{path}.resource", f"{fields['resource'][:60]!r} {message}")
