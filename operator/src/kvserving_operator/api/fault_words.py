"""Validation errors of the models in short sentences."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .base import PATTERN_WORDS, VERSION_PATTERN
from .faults import Fault
from .parse import join
from .types import SHOWN, quoted


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the nearest of ``candidates``, else those there are."""
    known = sorted(candidates)
    by_case = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name.casefold()[:SHOWN], by_case, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {by_case[near[0]]}?"
    return f"; known here: {', '.join(known)}" if known else ""


def translate(error: ValidationError) -> tuple[Fault, ...]:
    """Return one fault per field that ``error`` names."""
    faults: dict[str, Fault] = {}
    short: list[str] = []
    for detail in error.errors(include_url=False):
        path = ""
        for step in detail["loc"]:
            path = f"{path}[{step}]" if isinstance(step, int) else join(path, step)
        value = detail["input"]
        hidden = _secret(path)
        shown = "the value" if hidden else _shown(value)
        message = words_of(detail, shown)
        if detail["type"] in _FORMS:
            message += _form(detail["type"], detail["loc"], value)
        if hidden and detail["type"] == "value_error":
            message = "the value does not have the right form"
        faults.setdefault(path, Fault(path, message, None if hidden or _is_container(value) else _shown(value)))
        if detail["type"] == "too_short" and value:
            short.append(path)
    # Entries with faults of their own are not counted: that the rest is too short is no second mistake.
    told = {path for path in short if any(other.startswith(f"{path}[") for other in faults)}
    return tuple(fault for path, fault in faults.items() if path not in told)


def words_of(detail: ErrorDetails, shown: str | None = None) -> str:
    """The sentence of one error, without the form to write; ``shown`` stands for its value where that is given."""
    value = detail["input"]
    return _WORDS.get(detail["type"], _other)(_shown(value) if shown is None else shown, detail.get("ctx", {}), value)


_FORMS = frozenset({"string_type", "tuple_type", "dict_type", "model_type", "model_attributes_type"})


def _form(kind: str, path: tuple[str | int, ...], value: Any) -> str:
    """What to write in place of a value of the wrong type."""
    from . import way_out

    if kind == "string_type":
        return "" if value is None or _is_container(value) else way_out.text(path, value)
    if kind == "tuple_type":
        return way_out.entries(path, value)
    return way_out.mapping(path) if kind == "dict_type" else way_out.fields(path, value)


def _secret(path: str) -> bool:
    return ".env[" in path or ".args[" in path


def _is_container(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if _is_container(value):
        return "a map" if isinstance(value, Mapping) else "a list"
    return quoted(value)


def _int(shown: str, context: Mapping[str, Any], value: Any) -> str:
    hint = ""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
        plain = str(int(value))
        hint = ": remove the quotes" if plain == value else f": write it as {plain}"
    return f"{shown} is not a whole number{hint}"


MEANT = {
    **dict.fromkeys(
        ("redis", "valkeys", "rediss"), "valkey (deployed with the service, of size) or external (yours, at url)"
    ),
    **dict.fromkeys(("disk", "file", "folder", "fs", "nfs", "pvc"), "filesystem"),
    **dict.fromkeys(("cuda", "nvidia", "rocm", "amd"), "gpu"),
}
"""What others call a choice, with what it is here."""


def _choice(shown: str, context: Mapping[str, Any], value: Any) -> str:
    expected = str(context["expected"]).replace("'", "").replace(" or ", ", ")
    choices = expected.split(", ")
    hint = ""
    if isinstance(value, str) and (meant := MEANT.get(value.casefold(), "")).partition(" ")[0] in choices:
        hint = f"; write {meant}"
    elif isinstance(value, str) and difflib.get_close_matches(
        value.casefold()[:SHOWN], [c.casefold() for c in choices]
    ):
        hint = suggestion(value, choices)
    return f"{shown} is not one of {expected}{hint}"


def _pattern(shown: str, context: Mapping[str, Any], value: Any) -> str:
    from .way_out import version

    pattern = str(context["pattern"])
    near = version(value) if pattern == VERSION_PATTERN else value
    hint = f': write "{near}"' if near != value else ""
    return f"{shown} is not {PATTERN_WORDS.get(pattern, f'of the form {pattern}')}{hint}"


def _short_list(shown: str, context: Mapping[str, Any], value: Any) -> str:
    return f"{shown} has {context['actual_length']} entries: at least {context['min_length']} must be given"


def _long_list(shown: str, context: Mapping[str, Any], value: Any) -> str:
    return f"{shown} has more than {context['max_length']} entries: shorten it"


def _short_text(shown: str, context: Mapping[str, Any], value: Any) -> str:
    state = "is empty" if value == "" else f"{shown} is too short"
    return f"{state}: it needs at least {context['min_length']} character"


def _long_text(shown: str, context: Mapping[str, Any], value: Any) -> str:
    return f"has {len(value)} characters: at most {context['max_length']} are allowed, shorten it"


def _other(shown: str, context: Mapping[str, Any], value: Any) -> str:
    return f"{shown} is not valid here"


_WORDS: dict[str, Callable[[str, Mapping[str, Any], Any], str]] = {
    "missing": lambda shown, context, value: "is required",
    "literal_error": _choice,
    "int_type": _int,
    "int_from_float": _int,
    "int_parsing": _int,
    "bool_type": lambda shown, context, value: (
        f"{shown} is not true or false{': remove the quotes' if value in ('true', 'false') else ''}"
    ),
    "string_type": lambda shown, context, value: f"{shown} is not text",
    "string_pattern_mismatch": _pattern,
    "string_too_short": _short_text,
    "string_too_long": _long_text,
    "too_short": _short_list,
    "too_long": _long_list,
    "greater_than": lambda shown, context, value: f"{shown} must be greater than {context['gt']}",
    "greater_than_equal": lambda shown, context, value: f"{shown} is too small: at least {context['ge']}",
    "less_than_equal": lambda shown, context, value: f"{shown} is too large: at most {context['le']}",
    "tuple_type": lambda shown, context, value: f"{shown} is not a list",
    "dict_type": lambda shown, context, value: f"{shown} is not a map",
    "model_type": lambda shown, context, value: f"{shown} is not a map of fields",
    "model_attributes_type": lambda shown, context, value: f"{shown} is not a map of fields",
    "value_error": lambda shown, context, value: str(context["error"]),
}
