"""The fields of both kinds: path, type, bounds, default, meaning, and the rules about them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..api import owned, schema, serving_role
from ..api.base import PATTERN_WORDS, Section
from ..api.fields import known_fields
from ..api.rule import Rule
from ..api.rules import RULES
from ..api.types import Duration, Percentage, Quantity, QuantityOrZero, Ratio, ResourceQuantity
from ..api.v1alpha1 import API_VERSION, KIND, KVServingSpec, KVServingStatus
from .markdown import code, codes, link, page, table

PAGE = "reference-fields.md"
_FORMS = (Quantity, QuantityOrZero, ResourceQuantity, Duration, Percentage, Ratio)
_WORDS = {f"^{form.pattern}$": form.expected for form in _FORMS} | PATTERN_WORDS
_DEFAULT = " Default: "
_RULES = ("Rule about", "Looks at", "An object is refused with")


@dataclass(frozen=True)
class Group:
    """A section of the object, with every path at which it stands; entries of lists end with ``[]``."""

    paths: tuple[str, ...]
    node: Mapping[str, Any]
    description: str

    @property
    def title(self) -> str:
        """The heading."""
        return ", ".join(self.paths)


@dataclass(frozen=True)
class Field:
    """A field as the page shows it."""

    name: str
    type: str
    bounds: str
    default: str
    meaning: str


def render() -> str:
    """Return the page."""
    role = schema.role_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    whole = schema.object_schema()
    parts = [
        _kind(KIND, whole, {"spec": KVServingSpec, "status": KVServingStatus}, RULES),
        _kind(
            serving_role.KIND,
            role,
            {"spec": serving_role.KVServingRoleSpec, "status": serving_role.KVServingRoleStatus},
            serving_role.RULES,
            prefix=f"{serving_role.KIND} ",
        ),
    ]
    return page(
        "Field reference",
        f"Both kinds are of `{API_VERSION}`. The schema in the cluster holds no defaults: the operator's plan does. A "
        "field whose default is empty is unset, and its meaning says what that is.",
        "A rule is checked by the apiserver and by `kvserving validate`, with the same message; what needs more than "
        "the object's form (facts of the model, versions, sums of memory) is checked by the plan and reported in "
        "`status.errors`. Flags and variables that `args` and `env` may not hold are in the "
        "[engine reference](reference-engines.md#flags-that-are-not-yours).",
        *(text for part in parts for text in part),
    )


def _kind(
    kind: str, whole: Mapping[str, Any], roots: Mapping[str, type[Section]], rules: Iterable[Rule], prefix: str = ""
) -> list[str]:
    found = groups(whole, roots)
    told = [rule for rule in rules if not _of_arguments(rule)]
    texts = [f"## {kind}", str(whole["description"]), _contents(found, prefix)]
    if about := [(code(rule.blames), "", rule.message) for rule in told if not _owners(rule, found)]:
        texts.append(table(_RULES, about))
    for group in found:
        texts.append(f"### {prefix}{group.title}")
        texts.append(group.description)
        rows = ((code(f.name), f.type, f.bounds, f.default, f.meaning) for f in fields(group, found, prefix))
        texts.append(table(("Field", "Type", "Bounds", "Default", "Meaning"), rows))
        if about := list(_rules(group, found, told)):
            texts.append(table(_RULES, about))
    return texts


def _contents(found: Iterable[Group], prefix: str) -> str:
    return "Sections: " + ", ".join(link(f"{prefix}{group.title}", group.title) for group in found) + "."


def groups(whole: Mapping[str, Any], roots: Mapping[str, type[Section]]) -> tuple[Group, ...]:
    """Return the sections of an object in the order of its fields; one that stands at several paths is one group."""
    paths: dict[type[Section], list[str]] = {}
    nodes: dict[type[Section], Mapping[str, Any]] = {}

    def visit(section: type[Section], node: Mapping[str, Any], path: str) -> None:
        paths.setdefault(section, []).append(path)
        nodes.setdefault(section, node)
        for name, nested in known_fields(section).items():
            if nested is None:
                continue
            inner = node["properties"][name]
            if "items" in inner:
                visit(nested, inner["items"], f"{path}.{name}[]")
            else:
                visit(nested, inner, f"{path}.{name}")

    for name, section in roots.items():
        visit(section, whole["properties"][name], name)
    return tuple(
        # What is said of one path is not so of the others.
        Group(tuple(several), nodes[section], nodes[section]["description"] if len(several) == 1 else _about(section))
        for section, several in paths.items()
    )


def _about(section: type[Section]) -> str:
    return (inspect.getdoc(section) or "").partition("\n\n")[0]


def fields(group: Group, found: Iterable[Group], prefix: str = "") -> Iterator[Field]:
    """Yield the fields of a group; the type of one that is a section links to its group."""
    by_path = {path: other for other in found for path in other.paths}
    required = group.node.get("required", ())
    for name, node in group.node["properties"].items():
        meaning, _, default = node["description"].partition(_DEFAULT)
        inner = next(
            (f"{group.paths[0]}.{name}{end}" for end in ("", "[]") if f"{group.paths[0]}.{name}{end}" in by_path), ""
        )
        kind = _type(node)
        if inner:
            words = "list of objects" if inner.endswith("[]") else "object"
            kind = link(f"{prefix}{by_path[inner].title}", words)
        default = default.removesuffix(".")
        default = "required" if name in required else default if " " in default else code(default)
        yield Field(name, kind, "; ".join(_bounds(node)), default, meaning)


def _type(node: Mapping[str, Any]) -> str:
    if "x-kubernetes-int-or-string" in node:
        return "number or text"
    if node["type"] == "array":
        return "set" if node.get("x-kubernetes-list-type") == "set" else "list"
    return {"string": "text", "integer": "number", "boolean": "true or false", "object": "map"}[node["type"]]


def _bounds(node: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in node:
        yield codes(node["enum"])
    if "pattern" in node:
        yield _WORDS.get(node["pattern"]) or code(node["pattern"].removeprefix("^").removesuffix("$"))
    if "format" in node:
        yield str(node["format"])
    for least, most, unit in (
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " entries"),
        ("minProperties", "maxProperties", " keys"),
    ):
        if least in node and most in node:
            yield f"{node[least]} to {node[most]}{unit}"
        elif most in node and "pattern" not in node:
            yield f"at most {node[most]}{unit}"
        elif least in node and "pattern" not in node:
            yield f"at least {node[least]}{unit}"
    for inner in ("items", "additionalProperties"):
        if inner in node and "properties" not in node[inner] and (told := "; ".join(_bounds(node[inner]))):
            yield f"each {told}"


def _of_arguments(rule: Rule) -> bool:
    """Whether the rule is about a flag or variable of vLLM: the reference of engines lists these."""
    flags = {flag.reason for flag in owned.FLAGS}
    return rule.message in flags or rule.message in {f"{v.shown} {v.why}" for v in owned.VARIABLES}


def _owners(rule: Rule, found: Iterable[Group]) -> list[tuple[Group, str]]:
    """The group, and the path of it, that has the field which the rule blames; none for what no section has."""
    blamed = _path(rule.blames)
    holding = [(group, path) for group in found for path in group.paths if _within(blamed, path)]
    return [max(holding, key=lambda one: len(one[1]))] if holding else []


def _rules(group: Group, found: Iterable[Group], rules: Iterable[Rule]) -> Iterator[tuple[str, str, str]]:
    """Yield what is refused in fields of the group; what several of its paths have is told once."""
    told = set()
    for rule in rules:
        for owner in (path for other, path in _owners(rule, found) if other is group):
            field = _path(rule.blames).removeprefix(owner).removeprefix(".")
            shown = (read.removeprefix(f"{owner}.") for read in _looked(rule))
            row = (code(field) or "the whole", codes(shown), _message(rule, owner, group))
            if row not in told:
                told.add(row)
                yield row


def _looked(rule: Rule) -> Iterator[str]:
    """Yield the fields that the rule reads besides the one it blames, without those that only lead to another."""
    reads = {_path(read) for read in rule.reads}
    others = reads | {_path(rule.blames), _path(rule.at)}
    for read in sorted(reads - {_path(rule.blames)}):
        if not any(other != read and _within(other, read) for other in others) and read != _path(rule.at):
            yield read


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}[]"))


def _path(path: str) -> str:
    return path.replace("[*]", "[]")


def _message(rule: Rule, owner: str, group: Group) -> str:
    """The message; where the group stands at several paths, without the one that the rule is about."""
    blamed = f"{_path(rule.blames)} "
    goes_on = rule.message.startswith(f"{blamed}and ")
    message = rule.message if goes_on else rule.message.removeprefix(blamed)
    return re.sub(rf"\b{re.escape(owner)}\.", "", message) if len(group.paths) > 1 else message
