"""The CRDs of ``KVServing`` and ``KVServingRole``, made from the models and the rules.

``python -m kvserving_operator.api.schema --write crds`` writes them, ``--check crds`` exits
with 1 when a file differs. The schema is structural: no references, no unions, no nulls,
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

from .. import generated, plain_yaml
from . import serving_role
from .base import Section
from .rule import Rule
from .rules import RULES
from .v1alpha1 import GROUP, KIND, VERSION, KVServingSpec, KVServingStatus

PLURAL = "kvservings"
FILE_NAME = f"{GROUP}_{PLURAL}.yaml"
ROLE_FILE_NAME = f"{GROUP}_{serving_role.PLURAL}.yaml"
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
    {"name": "Available", "type": "string", "jsonPath": _condition("Available", "status")},
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


ROLE_COLUMNS: tuple[Mapping[str, Any], ...] = (
    {"name": "Serving", "type": "string", "jsonPath": ".spec.servingName"},
    {"name": "Role", "type": "string", "jsonPath": ".spec.role"},
    {"name": "Asked", "type": "integer", "jsonPath": ".spec.replicas"},
    {"name": "Engines", "type": "integer", "jsonPath": ".status.replicas"},
    {"name": "Min", "type": "integer", "jsonPath": ".spec.bounds.min"},
    {"name": "Max", "type": "integer", "jsonPath": ".spec.bounds.max"},
    {"name": "Selector", "type": "string", "jsonPath": ".status.selector", "priority": 1},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
)
"""Columns of ``kubectl get`` for roles."""


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD of ``KVServing`` as plain values, equal for equal sources."""
    made = _definition(KIND, PLURAL, "kvs", COLUMNS, {"status": {}}, object_schema())
    # kubectl takes the word for all kinds of the category before it takes it for a kind: one kind alone may have it.
    made["spec"]["names"]["categories"] = ["kvserving"]
    return made


def role_definition() -> dict[str, Any]:
    """Return the CRD of ``KVServingRole`` as plain values, equal for equal sources."""
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    schema = _whole(
        serving_role.KIND,
        "Number of engines of one role that is scaled: what HPA, KEDA and people write, best through /scale.",
        serving_role.KVServingRoleSpec,
        serving_role.KVServingRoleStatus,
        serving_role.RULES,
    )
    kind, plural = serving_role.KIND, serving_role.PLURAL
    return _definition(kind, plural, "kvsr", ROLE_COLUMNS, {"status": {}, "scale": scale}, schema)


def definitions() -> dict[str, dict[str, Any]]:
    """Return every CRD by the name of its file."""
    return {FILE_NAME: custom_resource_definition(), ROLE_FILE_NAME: role_definition()}


def _definition(
    kind: str,
    plural: str,
    short: str,
    columns: Iterable[Mapping[str, Any]],
    subresources: Mapping[str, Any],
    schema: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [dict(column) for column in columns],
                    "subresources": dict(subresources),
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def object_schema(rules: Iterable[Rule] = RULES) -> dict[str, Any]:
    """Return the structural schema of a whole ``KVServing``, with ``rules`` at their places."""
    description = "One prefill/decode-disaggregated, tiered-KV vLLM service."
    return _whole(KIND, description, KVServingSpec, KVServingStatus, rules)


def _whole(
    kind: str, description: str, spec: type[Section], status: type[Section], rules: Iterable[Rule]
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Version of this kind, kvserving.dev/v1alpha1."},
            "kind": {"type": "string", "description": f"Always {kind}."},
            "metadata": {"type": "object"},
            "spec": section_schema(spec),
            "status": section_schema(status),
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


def render(definition: Mapping[str, Any] | None = None) -> str:
    """Return the text of a CRD's file: of ``definition``, without one of that of ``KVServing``."""
    header = "# Generated by kvserving_operator.api.schema from the models and rules; do not edit.\n"
    plain = custom_resource_definition() if definition is None else dict(definition)
    return header + yaml.dump(plain, Dumper=plain_yaml.Dumper, sort_keys=False, width=_LINE, allow_unicode=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the CRDs' files in the named folder; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvserving_operator.api.schema", description="The CRDs' files.")
    generated.actions(parser).add_argument("--json", action="store_true", help="print the CRDs as a JSON list")
    options = parser.parse_args(arguments)
    made = definitions()
    if options.json:
        print(json.dumps(list(made.values()), ensure_ascii=False))
        return 0
    if options.print:
        print("---\n".join(render(definition) for definition in made.values()), end="")
        return 0
    return max(
        generated.write_or_check(name, render(definition), options, "the models and rules")
        for name, definition in made.items()
    )


if __name__ == "__main__":
    sys.exit(main())
