"""Checks of environment variables as the apiserver makes them when it gets the pod."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from ..api import base, metadata
from ..api.faults import Fault
from ..api.types import Quantity, quoted
from ..engines.written import real, whole
from . import check_resources, template
from .context import Context

_KEYS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "secretKeyRef": (frozenset({"name", "key"}), frozenset({"optional"})),
    "configMapKeyRef": (frozenset({"name", "key"}), frozenset({"optional"})),
    "fieldRef": (frozenset({"fieldPath"}), frozenset({"apiVersion"})),
    "resourceFieldRef": (frozenset({"resource"}), frozenset({"containerName", "divisor"})),
}
"""Sources with the fields that each needs and those it may have."""

_FIELD = re.compile(
    r"metadata\.(name|namespace|uid|(?P<of>labels|annotations)\['(?P<key>[^']+)'\])"
    r"|spec\.(nodeName|serviceAccountName)|status\.(podIPs?|hostIPs?)"
)
_RESOURCE = re.compile(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-[0-9A-Za-z]+)")
_NAME = re.compile(base.NAME_PATTERN)
_DATA_KEY = re.compile(r"(?!\.$|\.\.)[-._a-zA-Z0-9]{1,253}")
# Newer versions of Kubernetes take more, which every supported one must.
_VARIABLE = re.compile(r"(?!\.$|\.\.)[-._a-zA-Z][-._a-zA-Z0-9]*")
_BINARY = tuple(Decimal(2) ** (10 * power) for power in range(7))
_DECIMAL = tuple(Decimal(10) ** (3 * power) for power in range(7))
_DIVISORS: Mapping[str, tuple[frozenset[Decimal], str]] = {
    "cpu": (frozenset({Decimal(0), Decimal(1), Decimal("0.001")}), "1 or 1m"),
    "bytes": (frozenset({Decimal(0), *_BINARY, *_DECIMAL}), "1 or a unit such as 1Mi or 1Gi"),
}
_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
_GI = 2**30


def faults(ctx: Context) -> Iterator[Fault]:
    """Faults in ``env`` of the engine and of each role."""
    for section, variables in (("engine", ctx.spec.engine.env), *((role, ctx.role(role).env) for role in ctx.roles)):
        for index, variable in enumerate(variables):
            path = f"spec.{section}.env[{index}]"
            yield from _kv_space(variable.name, variable.value, path)
            if variable.value_from is not None:
                yield from _source(variable.name, variable.value_from, f"{path}.valueFrom")


def of_container(container: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """Faults in the form of a template's variables; those that are no maps are found elsewhere."""
    items = container.get("env")
    seen: set[str] = set()
    for index, variable in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(variable, Mapping):
            continue
        where, name = f"{path}.env[{index}]", variable.get("name")
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            yield Fault(
                where, "a variable needs a name of letters, digits, dashes, dots and underscores, no digit first"
            )
            continue
        if name in seen:
            yield Fault(where, f"{name} is given twice: keep one entry", name)
        seen.add(name)
        value, source = variable.get("value"), variable.get("valueFrom")
        yield from _kv_space(name, value, where)
        if value is not None and source is not None:
            yield Fault(where, f"{name} has both value and valueFrom: keep one", name)
        elif source is not None:
            yield from _source(name, source, f"{where}.valueFrom")


def _kv_space(name: str, value: Any, path: str) -> Iterator[Fault]:
    """A size of the KV of CPU engines that ends them at their start: vLLM reads whole numbers alone, as GiB."""
    if name != _KV_SPACE or not isinstance(value, str) or "$(" in value:
        return
    if (found := whole(value.strip())) is not None and found >= 0:
        return
    meant = _meant(value.strip())
    # What is no size may be a secret that slipped into the wrong place.
    shown = "what is given" if meant is None else quoted(value)
    message = f'{shown} is no whole number of GiB, which {_KV_SPACE} is: write "{meant or 1}" (GiB)'
    yield Fault(f"{path}.value", message, None if meant is None else value)


def _meant(value: str) -> int | None:
    """The whole GiB that hold what ``value`` says: a number of GiB, or a size with its unit; None for others."""
    try:
        size = int((real(value) or 0) * _GI) or Quantity(value.removesuffix("B")).bytes
    except (ValueError, OverflowError):
        return None
    return max(1, -(-size // _GI)) if 0 < size < 2**63 else None


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
    if "name" in needed and (not _NAME.fullmatch(fields["name"]) or len(fields["name"]) > 253):
        yield Fault(f"{path}.name", f"{fields['name'][:60]!r} is not {base.PATTERN_WORDS[base.NAME_PATTERN]}")
    if "key" in needed and not _DATA_KEY.fullmatch(fields["key"]):
        yield Fault(f"{path}.key", f"{fields['key'][:60]!r} is no key: use letters, digits, dots, dashes, underscores")
    if fields.get("optional") is not None and not isinstance(fields["optional"], bool):
        yield Fault(f"{path}.optional", "is not true or false: a missing key is an error unless it is true")
    if kind == "fieldRef":
        yield from _field(fields, path)
    if kind == "resourceFieldRef":
        yield from _resource(fields, path)


def _field(fields: Mapping[str, Any], path: str) -> Iterator[Fault]:
    field, version = fields["fieldPath"], fields.get("apiVersion")
    if version not in (None, "", "v1"):
        yield Fault(f"{path}.apiVersion", f"{str(version)[:60]!r} is no version of a pod: use v1, or leave it out")
    found = _FIELD.fullmatch(field)
    if found is None:
        message = (
            "is no field that a pod gives its containers: use one such as metadata.name, spec.nodeName, status.podIP"
        )
        yield Fault(f"{path}.fieldPath", f"{field[:60]!r} {message}")
    elif (key := found["key"]) is not None and not metadata.is_key(key, annotation=found["of"] == "annotations"):
        yield Fault(
            f"{path}.fieldPath", f"{key[:60]!r} is no key of a label or annotation: use one such as example.com/a"
        )


def _resource(fields: Mapping[str, Any], path: str) -> Iterator[Fault]:
    resource, divisor, container = fields["resource"], fields.get("divisor"), fields.get("containerName")
    if container is not None and not isinstance(container, str):
        yield Fault(f"{path}.containerName", f"{str(container)[:60]} is not text: put it in quotes")
    if not _RESOURCE.fullmatch(resource):
        message = "is no resource that a pod gives its containers: use one such as limits.cpu or requests.memory"
        yield Fault(f"{path}.resource", f"{resource[:60]!r} {message}")
        return
    allowed, words = _DIVISORS["cpu" if resource.endswith(".cpu") else "bytes"]
    if divisor is not None and check_resources.amount(divisor) not in allowed:
        yield Fault(f"{path}.divisor", f"{str(divisor)[:60]!r} is no divisor of {resource}: use {words}")
