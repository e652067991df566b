"""The Secrets that the pods of a plan cannot start without, as their templates name them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..api.v1alpha1 import KVServing
from ..plan import workloads
from ..plan.types import Manifest, Plan


def named_by(manifest: Manifest) -> dict[str, frozenset[str]]:
    """Return the Secrets that a workload's pods need, each with the keys that they need of it."""
    found: dict[str, frozenset[str]] = {}
    if manifest["kind"] in workloads.KINDS:
        for name, keys in _references(manifest.get("spec")):
            found[name] = found.get(name, frozenset()) | keys
    return found


def of_users(plan: Plan) -> dict[str, frozenset[str]]:
    """Return the Secrets that the pods of ``plan`` need and that the operator does not make, with their keys."""
    found: dict[str, frozenset[str]] = {}
    for manifest in plan.objects:
        for name, keys in named_by(manifest).items():
            found[name] = found.get(name, frozenset()) | keys
    made = {secret.name for secret in plan.generated_secrets}
    return {name: keys for name, keys in sorted(found.items()) if name not in made}


def field_of(serving: KVServing, name: str) -> str:
    """Return the field of the spec that names the Secret ``name``, or where else the name comes from."""
    spec = serving.spec
    l2 = spec.cache.l2 if spec.cache is not None else None
    for path, value in (
        ("spec.router.apiKeySecretRef", spec.router.api_key_secret_ref),
        ("spec.model.secretRef", spec.model.secret_ref),
        ("spec.cache.l2.secretRef", l2.secret_ref if l2 is not None else None),
    ):
        if value == name:
            return path
    return "named by a pod's environment or volumes"


def _references(node: Any) -> Iterator[tuple[str, frozenset[str]]]:
    if isinstance(node, Mapping):
        reference, volume = node.get("secretKeyRef"), node.get("secret")
        if isinstance(reference, Mapping) and reference.get("name") and not reference.get("optional"):
            yield str(reference["name"]), frozenset((str(reference.get("key", "")),))
        if isinstance(volume, Mapping) and not volume.get("optional"):
            # In a projected volume it is called name.
            name = volume.get("secretName") or volume.get("name")
            if name:
                yield str(name), frozenset(str(item.get("key", "")) for item in volume.get("items") or ())
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _references(value)
