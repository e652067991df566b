"""What to write in place of a value of the wrong type, as the models know it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from .base import Section
from .data_spec import L2
from .fields import glued, known_fields
from .v1alpha1 import KVServing

_EXAMPLES = {
    "uri": "hf://owner/name",
    "name": "A",
    "value": '"1"',
    "weight": "1",
    "max": "4",
    "limits": "{memory: 8Gi}",
    "requests": "{memory: 8Gi}",
    "template": "{spec: {nodeSelector: {disk: fast}}}",
    "valueFrom": "{secretKeyRef: {name: a, key: b}}",
}
_STORES = {
    **dict.fromkeys(("valkey", "filesystem"), ", size: 4Gi"),
    "external": ", url: redis://host:6379",
    "s3": ", url: s3://bucket/prefix",
    "mooncake": ", url: mooncake://host:50051",
}
"""What each type of store needs besides."""
_PLAIN = re.compile(r"[A-Za-z][-A-Za-z0-9_./]*|[0-9]+(\.[0-9]+)?[A-Za-z]*|[a-z0-9]+://?[^ ,\[\]{}#]+")
_MODEL = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]*/[-A-Za-z0-9_.]+")


def source(written: str) -> str | None:
    """The address of a model that ``written`` means: a folder, or owner/name of the hub; None for others."""
    if " " in written or "@" in written:
        return None
    if written.startswith("/"):
        return f"file://{written}"
    if re.match(r"(~|\.\.?)/", written):
        return f"file://{written}" if written.startswith("~") else f"file:{written}"
    return f"hf://{written}" if _MODEL.fullmatch(written) else None


def fields(path: Sequence[str | int], value: Any) -> str:
    """How the section at ``path`` is written that ``value``, which is no map, means; empty where none is there."""
    section = _section_at(path)
    if section is None:
        return ""
    hidden = "env" in path or "args" in path
    names = _candidates(section)
    if not hidden and isinstance(value, str) and (near := glued(value)) and near[0] in known_fields(section):
        return f': write "{near[0]}: {near[1]}", with a space behind the colon'
    plain = not hidden and isinstance(value, (str, int, float))
    if plain and (meant := next((written for name in names if (written := _meant(section, name, value))), None)):
        return f": write {{{meant}}}"
    told = names[:2] if hidden else _required(section) or names[:2]
    if all(name in _EXAMPLES for name in told):
        return f": write {{{', '.join(f'{name}: {_EXAMPLES[name]}' for name in told)}}}"
    return f": its fields are {', '.join(names[:4])}{', …' if len(names) > 4 else ''}"


def _meant(section: type[Section], name: str, value: str | float) -> str | None:
    """The field ``name`` of ``section`` with ``value`` in it; None where it does not take it, or takes any word."""
    from .fault_words import MEANT

    if name == "uri":
        written = str(value)
        return f"uri: {written if '://' in written else source(written) or _EXAMPLES['uri']}"
    if not isinstance(value, str) and _accepts(section, name, "1Gi"):
        return f"{name}: {value}Gi" if _accepts(section, name, f"{value}Gi") else None
    if name not in _required(section) and _accepts(section, name, "any-word"):
        return None
    known = MEANT.get(value.casefold(), "").partition(" ")[0] if isinstance(value, str) else ""
    taken = next((each for each in (value, known) if each != "" and _accepts(section, name, each)), None)
    if taken is None:
        return None
    return f"{name}: {_written(taken)}{_STORES.get(str(taken), '') if section is L2 else ''}"


def entries(path: Sequence[str | int], value: Any) -> str:
    """How the list at ``path`` is written that ``value``, which is none, means."""
    section = _section_at(path)
    if section is None:
        plain = isinstance(value, str) and len(value) <= 60
        return f": write [{_written(value)}]" if plain else ": write it in brackets, [a, b]"
    told = [name for name in known_fields(section) if name in _EXAMPLES][:2]
    first = next(iter(value), None) if isinstance(value, Mapping) else None
    named = value.get("name") if first in known_fields(section) else first
    name = named if isinstance(named, str) and re.fullmatch(r"[-A-Za-z0-9_.]{1,60}", named) else _EXAMPLES["name"]
    entry = ", ".join(f"{field}: {name if field == 'name' else _EXAMPLES[field]}" for field in told)
    return f": write [{{{entry}}}]"


def mapping(path: Sequence[str | int]) -> str:
    """How the free map at ``path`` is written."""
    example = _EXAMPLES.get(str(path[-1])) if path else None
    return f": write {example}" if example else ""


def text(path: Sequence[str | int], value: Any) -> str:
    """What to write for a ``value`` that is a number or true or false, where a text is wanted: it in quotes, or
    what it lacks besides."""
    quotes = ": put it in quotes"
    section = _section_at(path[:-1]) if path else None
    if section is None or str(path[-1]) not in known_fields(section) or "env" in path:
        return quotes
    name, plain = str(path[-1]), str(value).lower() if isinstance(value, bool) else str(value)
    if name == "uri":
        return f": write {_EXAMPLES['uri']}, or file:///path"
    if _accepts(section, name, plain):
        return quotes
    if _accepts(section, name, version(plain)):
        return f': write "{version(plain)}"'
    return f" of the form that is wanted: {_refusal(section, name, plain)}"


def version(written: str) -> str:
    """A version of three numbers where ``written`` has two of them or begins with v, else ``written``."""
    found = re.fullmatch(r"v?([0-9]{1,4}\.[0-9]{1,4})(\.[0-9]{1,4})?", written)
    return written if found is None else found[1] + (found[2] or ".0")


def _section_at(path: Sequence[str | int]) -> type[Section] | None:
    """The section that stands at ``path``, or whose list does."""
    found: type[Section] | None = KVServing
    for step in path:
        if found is not None and isinstance(step, str):
            found = known_fields(found).get(step)
    return found


def _candidates(section: type[Section]) -> list[str]:
    """The fields of ``section``: required ones first, then those with a choice of words, then the others."""
    ranked = sorted(section.model_fields.items(), key=lambda item: (not item[1].is_required(), not _is_choice(item[1])))
    return [field.alias or name for name, field in ranked]


def _required(section: type[Section]) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items() if field.is_required()]


def _is_choice(field: FieldInfo) -> bool:
    kinds = (field.annotation, *get_args(field.annotation))
    return any(get_origin(kind) is Literal for kind in kinds)


def _accepts(section: type[Section], name: str, value: Any) -> bool:
    return _refusal(section, name, value) is None


def _refusal(section: type[Section], name: str, value: Any) -> str | None:
    """What is said of ``value`` in the field ``name`` of ``section``; None where it is taken."""
    from .fault_words import words_of

    try:
        section.model_validate({name: value})
    except ValidationError as error:
        return next((words_of(detail) for detail in error.errors() if detail["loc"][:1] == (name,)), None)
    return None


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value not in ("true", "false", "null") else json.dumps(value)
    return json.dumps(value)
