"""The CRD of ``KVServing``, made from the models and the rules.

``python -m kvserving_operator.api.schema --write crds`` writes it, ``--check crds`` exits
with 1 when the file differs. The schema is structural: no references, no unions, no nulls,
no defaults (rules ask which field was set), a bound on every text, list and map.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from .. import generated
from .base import Section
from .rule import Rule
from .rules import RULES
from .v1alpha1 import GROUP, KIND, VERSION, KVServingSpec, KVServingStatus

PLURAL = "kvservings"
FILE_NAME = f"{GROUP}_{PLURAL}.yaml"
_KEPT = (
    "type",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)
_LINE = 100_000


def _condition(kind: str, part: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{part}'


COLUMNS: tuple[Mapping[str, Any], ...] = (
    {"name": "Ready", "type": "string", "jsonPath": _condition("Ready", "status")},
    {"name": "Reason", "type": "string", "jsonPath": _condition("Ready", "reason")},
    {"name": "Prefill", "type": "string", "jsonPath": ".status.roles.prefill.summary"},
    {"name": "Decode", "type": "string", "jsonPath": ".status.roles.decode.summary"},
    {"name": "Transfer", "type": "string", "jsonPath": ".status.transfer"},
    {"name": "URL", "type": "string", "jsonPath": ".status.url"},
    {"name": "Model", "type": "string", "jsonPath": ".status.model", "priority": 1},
    {"name": "L1", "type": "string", "jsonPath": ".status.tiers.l1", "priority": 1},
    {"name": "L2", "type": "string", "jsonPath": ".status.tiers.l2", "priority": 1},
    {"name": "Revision", "type": "string", "jsonPath": ".status.revision", "priority": 1},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
)
"""Columns of ``kubectl get``; those with priority 1 appear with ``-o wide``."""


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD as plain values, equal for equal sources."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["kvs"],
                "categories": ["kvserving"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [dict(column) for column in COLUMNS],
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": object_schema()},
                }
            ],
        },
    }


def object_schema(rules: Iterable[Rule] = RULES) -> dict[str, Any]:
    """Return the structural schema of a whole object, with ``rules`` at their places."""
    schema = {
        "type": "object",
        "description": "One prefill/decode-disaggregated, tiered-KV vLLM service.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this kind, kvserving.dev/v1alpha1."},
            "kind": {"type": "string", "description": "Always KVServing."},
            "metadata": {"type": "object"},
            "spec": section_schema(KVServingSpec),
            "status": section_schema(KVServingStatus),
        },
    }
    for rule in rules:
        _place(schema, rule.at).setdefault("x-kubernetes-validations", []).append(_validation(rule))
    return schema


def section_schema(section: type[Section]) -> dict[str, Any]:
    """Return the structural schema of ``section`` without rules."""
    source = section.model_json_schema(by_alias=True)
    return _structural(source, source.get("$defs", {}))


def _structural(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    merged = _merged(node, definitions)
    result: dict[str, Any] = {}
    if description := merged.get("description"):
        result["description"] = description
    result.update((key, merged[key]) for key in _KEPT if key in merged)
    if "exclusiveMinimum" in merged:
        result["minimum"] = merged["exclusiveMinimum"] + 1
    if "x-kubernetes-int-or-string" in merged:
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if isinstance(values := merged.get("additionalProperties"), Mapping):
        result["additionalProperties"] = _structural(values, definitions)
    if "items" in merged:
        result["items"] = _structural(merged["items"], definitions)
    if "properties" in merged:
        result["properties"] = {}
        for name, field in merged["properties"].items():
            schema = _structural(field, definitions)
            default = _default_words(field.get("default"))
            if default and "Default:" not in schema["description"]:
                schema["description"] += f" Default: {default}."
            result["properties"][name] = schema
        if "required" in merged:
            result["required"] = merged["required"]
    return result


def _merged(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve reference and optional union of ``node``; what stands beside them wins."""
    beside = {key: value for key, value in node.items() if key not in ("$ref", "anyOf", "default", "title")}
    if "$ref" in node:
        return {**_merged(definitions[node["$ref"].rsplit("/", 1)[1]], definitions), **beside}
    if "anyOf" in node:
        kinds = [kind for kind in node["anyOf"] if kind.get("type") != "null"]
        if len(kinds) != 1:
            raise TypeError(f"a structural schema has no unions: {kinds}")
        return {**_merged(kinds[0], definitions), **beside}
    if "const" in node:
        return {**beside, "enum": [node["const"]]}
    return beside


def _default_words(default: Any) -> str | None:
    if default is None or isinstance(default, (Mapping, BaseModel)) or default in ([], ()):
        return None
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, (list, tuple)):
        return f"[{', '.join(map(str, default))}]"
    return str(default)


def _place(schema: dict[str, Any], at: str) -> dict[str, Any]:
    node: dict[str, Any] = schema
    for part in at.split(".") if at else ():
        node = node["properties"][part.removesuffix("[*]")]
        if part.endswith("[*]"):
            node = node["items"]
    return node


def _validation(rule: Rule) -> dict[str, str]:
    validation = {"rule": rule.cel, "message": rule.message}
    if (expression := rule.message_expression) is not None:
        validation["messageExpression"] = expression
    if rule.field is not None and rule.at:
        validation["fieldPath"] = f".{rule.field}"
    return validation


def render() -> str:
    """Return the text of the CRD's file."""
    header = "# Generated by kvserving_operator.api.schema from the models and rules; do not edit.\n"
    return header + yaml.dump(
        custom_resource_definition(), Dumper=generated.Dumper, sort_keys=False, width=_LINE, allow_unicode=True
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the CRD's file in the named folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvserving_operator.api.schema", description="The CRD's file.")
    generated.actions(parser).add_argument("--json", action="store_true", help="print the CRD as JSON")
    options = parser.parse_args(arguments)
    if options.json:
        print(json.dumps(custom_resource_definition(), ensure_ascii=False))
        return 0
    return generated.write_or_check(FILE_NAME, render(), options, "the models and rules")


if __name__ == "__main__":
    sys.exit(main())
