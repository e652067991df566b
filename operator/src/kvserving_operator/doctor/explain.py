"""Which settings a plan injects, each with its value and its reason. Pure.

What the user wrote is left out: it is no setting of ours, and may hold a secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import connectors
from ..api.v1alpha1 import KVServing, Role
from ..engines import arguments
from ..plan import labels, template
from ..plan.types import Manifest
from ..plan.workloads import KINDS, pod_template
from .explanations import Component, Key, Kind
from .explanations_service import EXPLANATIONS
from .findings import shown

_COMPONENTS: Mapping[str, Component] = {"prefill": "engine", "decode": "engine", "router": "router", "store": "store"}
_CONFIG = "--kv-transfer-config"


@dataclass(frozen=True)
class Injected:
    """One setting of a workload that the plan injects.

    ``owner`` is the connector of a connector's field, else empty. ``field`` is the path that decides the value.
    """

    role: str
    workload: str
    kind: Kind
    name: str
    value: str
    owner: str = ""

    @property
    def key(self) -> Key:
        """The key of its explanation."""
        return _COMPONENTS[self.role], self.kind, self.name

    @property
    def why(self) -> str:
        """Why it is there. Raises ``KeyError`` where the table has no entry, which the tests rule out."""
        return EXPLANATIONS[self.key].why

    @property
    def field(self) -> str:
        """The path of the field that decides it; empty where no field does."""
        return EXPLANATIONS[self.key].field.format(role=self.role)

    def to_json(self) -> dict[str, str]:
        """Plain JSON data, fit to be shown."""
        said = {
            "role": self.role, "workload": self.workload, "kind": self.kind, "name": self.name,
            "value": shown(self.value), "why": self.why,
        }  # fmt: skip
        return {
            **said,
            **({"connector": self.owner} if self.owner else {}),
            **({"field": self.field} if self.field else {}),
        }


def injected(serving: KVServing, objects: Sequence[Manifest]) -> tuple[Injected, ...]:
    """Every flag, variable and connector field that ``objects``, the plan of ``serving``, hold beside the user's."""
    found: list[Injected] = []
    for manifest in workloads(objects):
        role = role_of(manifest)
        container = main_container(template.section(pod_template(manifest), "spec"))
        args = [str(arg) for arg in container.get("args") or ()]
        name = str(manifest["metadata"]["name"])
        section = serving.spec.prefill if role == "prefill" else serving.spec.decode if role == "decode" else None
        users = user_args(serving, section) if section is not None else ()
        for flag in arguments.parse(args[: len(args) - len(users)]):
            value = "" if flag.name == _CONFIG else " ".join(flag.values)
            found.append(Injected(role, name, "flag", flag.name, value))
        named = user_variables(serving, section) if section is not None else frozenset()
        for entry in template.listed(container, "env"):
            if entry["name"] not in named:
                found.append(Injected(role, name, "env", str(entry["name"]), value_of(entry)))
        for owner, key, value in _fields(transfer_config(args)):
            found.append(Injected(role, name, "connector", key, value, owner))
    return tuple(found)


def workloads(objects: Sequence[Manifest]) -> list[Manifest]:
    """What makes pods among ``objects``, engines first."""
    found = [manifest for manifest in objects if manifest.get("kind") in KINDS]
    order = list(_COMPONENTS)
    return sorted((m for m in found if role_of(m) in order), key=lambda m: order.index(role_of(m)))


def role_of(manifest: Mapping[str, Any]) -> str:
    """The role in the labels of a child or pod; empty without one."""
    return str(((manifest.get("metadata") or {}).get("labels") or {}).get(labels.ROLE, ""))


def main_container(pod_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container of an engine, router or store; empty where there is none of those names."""
    names = set(_COMPONENTS.values())
    return next((c for c in template.listed(pod_spec, "containers") if c.get("name") in names), {})


def user_args(serving: KVServing, section: Role) -> tuple[str, ...]:
    """The user's arguments as they end a role's."""
    return arguments.without((*serving.spec.engine.args, *section.args), "--port")


def user_variables(serving: KVServing, section: Role) -> frozenset[str]:
    """Names of the variables that the user set for a role, in its template too."""
    named = {variable.name for variable in (*serving.spec.engine.env, *section.env)}
    pod = template.section(section.template or {}, "spec")
    return frozenset(named | {str(e.get("name")) for e in template.listed(template.engine_container(pod), "env")})


def transfer_config(args: Sequence[str]) -> Mapping[str, Any]:
    """The connectors' configuration in ``args``; empty where there is none, or none that can be read."""
    found = arguments.find(args, _CONFIG)
    return (found[-1].json() or {}) if found else {}


def value_of(entry: Mapping[str, Any]) -> str:
    """A variable's value, or where it comes from."""
    source = entry.get("valueFrom") or {}
    if secret := source.get("secretKeyRef"):
        return f"Secret {secret.get('name')}, key {secret.get('key')}"
    if reference := source.get("fieldRef"):
        return f"the pod's {reference.get('fieldPath')}"
    return str(entry.get("value", ""))


def _fields(config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(connector, field, value) of a transfer configuration, children after the connector that holds them."""
    if not config:
        return
    inner = [child for child in connectors.children(config) if child is not config]
    for connector in (config, *inner):
        name = str(connector.get("kv_connector", ""))
        for key, value in connector.items():
            if key != "kv_connector_extra_config":
                yield name, key, str(value)
        for key, value in (connector.get("kv_connector_extra_config") or {}).items():
            if key != "connectors":
                for path, text in _leaves(key, value):
                    yield name, path, text


def _leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _leaves(f"{path}.{key}", member)
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for item in value:
            yield from _leaves(path, item)
    else:
        yield path, json.dumps(value) if not isinstance(value, str) else value
