"""The Secrets that pods refer to, as the templates of their workloads name them. Pure.

What is marked ``optional`` is left out: pods start without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .template import listed, section
from .types import Manifest
from .workloads import pod_templates

PULL_KEY = ".dockerconfigjson"
"""The key of a Secret that images are pulled with."""
PULL_TYPE = "kubernetes.io/dockerconfigjson"
"""The type of a Secret that images are pulled with."""


@dataclass(frozen=True)
class SecretNeed:
    """What pods need of one Secret: that it exists, in any case, and that ``keys`` are in it.

    ``keys`` is empty where they take whatever is in it. ``starts`` says that pods cannot start without it, ``pulls``
    that images are pulled with it, which goes well without it where the registry or the node has them for everyone.
    """

    keys: frozenset[str] = frozenset()
    starts: bool = True
    pulls: bool = False

    def __or__(self, other: SecretNeed) -> SecretNeed:
        """What is needed by both together."""
        return SecretNeed(self.keys | other.keys, self.starts or other.starts, self.pulls or other.pulls)


def needed(objects: Iterable[Manifest]) -> dict[str, SecretNeed]:
    """Return by name, in order, what the pods of all ``objects`` need of Secrets: of leaders and workers alike."""
    found: dict[str, SecretNeed] = {}
    for manifest in objects:
        for template in pod_templates(manifest):
            for name, need in _of_pod(section(template, "spec")):
                found[name] = found[name] | need if name in found else need
    return dict(sorted(found.items()))


def _of_pod(pod: Mapping[str, Any]) -> Iterator[tuple[str, SecretNeed]]:
    for named in listed(pod, "imagePullSecrets"):
        if named.get("name"):
            yield str(named["name"]), SecretNeed(frozenset((PULL_KEY,)), starts=False, pulls=True)
    for reference, name, keys in (*_of_volumes(pod), *_of_environment(pod)):
        if reference.get(name) and not reference.get("optional"):
            yield str(reference[name]), SecretNeed(frozenset(str(key) for key in keys if key))


_Reference = tuple[Mapping[str, Any], str, list[Any]]
"""A part of a template that refers to a Secret, which of its fields has the name, and the keys that it takes."""


def _of_volumes(pod: Mapping[str, Any]) -> Iterator[_Reference]:
    for volume in listed(pod, "volumes"):
        yield _files(section(volume, "secret"), "secretName")
        for source in listed(section(volume, "projected"), "sources"):
            yield _files(section(source, "secret"), "name")


def _files(source: Mapping[str, Any], name: str) -> _Reference:
    return source, name, [item.get("key") for item in listed(source, "items")]


def _of_environment(pod: Mapping[str, Any]) -> Iterator[_Reference]:
    for container in (*listed(pod, "containers"), *listed(pod, "initContainers")):
        for entry in listed(container, "env"):
            reference = section(section(entry, "valueFrom"), "secretKeyRef")
            yield reference, "name", [reference.get("key")]
        for source in listed(container, "envFrom"):
            yield section(source, "secretRef"), "name", []
