"""Which fields the models know, at every depth, and which a value has besides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from .base import Section
from .fault_words import suggestion
from .faults import Fault
from .parse import Steps, join
from .v1alpha1 import Metadata

_OBJECT_META = (
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
)


@cache
def known_fields(section: type[Section]) -> Mapping[str, type[Section] | None]:
    """Map each field of ``section``, as it is written, to the section that its value or entries are, if any."""
    return {field.alias or name: _section(field.annotation) for name, field in section.model_fields.items()}


def unknown(section: type[Section], value: Any, path: str = "") -> tuple[tuple[Fault, ...], Any]:
    """Return a fault for each field of ``value`` that ``section`` does not know, and ``value`` without them.

    Values of other types than the section wants are returned as they are; they are faults
    of their own. Free-form maps (pod templates and the like) are not looked into.
    """
    faults: list[Fault] = []

    def visit(kind: type[Section], item: Any, where: str) -> Any:
        if isinstance(item, list):
            return [visit(kind, entry, f"{where}[{i}]") for i, entry in enumerate(item)]
        if not isinstance(item, Mapping):
            return item
        fields = known_fields(kind)
        kept = {}
        for key, member in item.items():
            inner = join(where, key)
            if key in fields:
                nested = fields[key]
                # A map in place of a list is told as such; its keys are no fields of an entry.
                other = isinstance(member, Mapping) and nested is not None and _is_list(kind, key)
                kept[key] = member if nested is None or other else visit(nested, member, inner)
            elif kind is not Metadata or key not in _OBJECT_META:
                candidates = (*fields, *_OBJECT_META) if kind is Metadata else tuple(fields)
                faults.append(Fault(inner, f"unknown field{_hint(section, kind, key, where, candidates)}"))
        return kept

    kept = visit(section, value, path)
    return tuple(faults), kept


def without_value(section: type[Section], nulls: Iterable[Steps]) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
    """Return a fault for each field without a value that ``section`` does not know, and the paths of those it knows.

    ``nulls`` are the places of fields without a value. In free-form maps one is a fault where a value stands in its
    name, behind a colon without a space. What tools keep (``status``, managed fields) has any field.
    """
    faults: list[Fault] = []
    known: list[str] = []
    for *above, key in nulls:
        kind: type[Section] | None = section
        where, asked = "", True
        for step in above:
            if isinstance(step, int):
                where = f"{where}[{step}]"
            elif kind is None or step in known_fields(kind) or (kind is Metadata and step in _OBJECT_META):
                where, kind = join(where, step), known_fields(kind).get(step) if kind is not None else None
            else:
                # It is a fault by itself.
                asked = False
                break
        inner, name = join(where, str(key)), str(key)
        if not asked or inner == "status" or inner.startswith(("status.", "status[", "metadata.managedFields")):
            continue
        if kind is Metadata and name in _OBJECT_META:
            continue
        if kind is None:
            if meant := glued(name):
                faults.append(Fault(inner, f"has no value; {_apart(*meant)}"))
        elif name in known_fields(kind):
            known.append(inner)
        elif (meant := glued(name)) and meant[0] in known_fields(kind):
            faults.append(Fault(inner, f"unknown field; {_apart(*meant)}"))
        else:
            candidates = (*known_fields(kind), *_OBJECT_META) if kind is Metadata else tuple(known_fields(kind))
            hint = _hint(section, kind, meant[0] if meant else name, where, candidates)
            faults.append(Fault(inner, f"unknown field{hint}"))
    return tuple(faults), tuple(known)


def _apart(field: str, value: str) -> str:
    return f'write "{field}: {value}", with a space behind the colon'


def glued(name: str) -> tuple[str, str] | None:
    """Field and value where ``name`` is both with a colon between and no space, as YAML reads ``{replicas:2}``."""
    field, colon, value = name.partition(":")
    return (field, value) if field and colon and value else None


def _hint(section: type[Section], kind: type[Section], key: str, where: str, candidates: tuple[str, ...]) -> str:
    """What to write in place of ``key``, which ``kind`` does not know, as the end of a sentence."""
    size = _PARALLEL.get(re.sub("[^a-z]|parallel|size", "", key.casefold()))
    if size in candidates:
        return f"; did you mean {size}?"
    if size is not None and "parallelism" in candidates:
        return f"; write parallelism: {{{size}: {'true' if size == 'expert' else 'N'}}}"
    if elsewhere := homes(section).get(key):
        return f"; it belongs to {' or '.join(elsewhere[:3])}"
    below = [f"{where}.{path}".lstrip(".") for path in leaves(kind).get(key, ())]
    return f"; it belongs to {' or '.join(below)}" if 0 < len(below) <= 3 else suggestion(key, candidates)


# What vLLM and others call the sizes of Parallelism, without what is said of each: parallel, size.
_PARALLEL = {
    **dict.fromkeys(("tp", "tensor"), "tensor"),
    **dict.fromkeys(("pp", "pipeline"), "pipeline"),
    **dict.fromkeys(("dp", "data"), "data"),
    **dict.fromkeys(("ep", "expert", "enableexpert"), "expert"),
}


@cache
def leaves(section: type[Section]) -> Mapping[str, tuple[str, ...]]:
    """Map each field without fields of its own anywhere below ``section``, lists left out, to its paths."""
    found: dict[str, list[str]] = {}

    def visit(kind: type[Section], where: str) -> None:
        for name, nested in known_fields(kind).items():
            if nested is None:
                found.setdefault(name, []).append(join(where, name))
            elif not _is_list(kind, name):
                visit(nested, join(where, name))

    visit(section, "")
    return {name: tuple(paths) for name, paths in found.items()}


@cache
def homes(section: type[Section]) -> Mapping[str, tuple[str, ...]]:
    """Map each section-valued field anywhere below ``section`` to the paths at which it is known."""
    found: dict[str, list[str]] = {}

    def visit(kind: type[Section], where: str) -> None:
        for name, nested in known_fields(kind).items():
            if nested is not None:
                found.setdefault(name, []).append(join(where, name))
                visit(nested, join(where, name))

    visit(section, "")
    return {name: tuple(paths) for name, paths in found.items()}


def _section(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if get_origin(annotation) in (Annotated, Union, UnionType, tuple):
        for argument in get_args(annotation):
            if argument in (NoneType, Ellipsis):
                continue
            if found := _section(argument):
                return found
    return None


def _is_list(section: type[Section], name: str) -> bool:
    (annotation,) = (f.annotation for n, f in section.model_fields.items() if name in (f.alias, n))
    return get_origin(annotation) is tuple or any(get_origin(part) is tuple for part in get_args(annotation))
