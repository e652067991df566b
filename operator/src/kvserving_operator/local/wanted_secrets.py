"""The Secrets of the user that the pods of a run need: whether this machine has them, and which fields name them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from . import usersecrets
from .errors import EnvironmentFault
from .pods import LocalPod

_NAMES = ("secretRef", "apiKeySecretRef", "secretName")
"""Fields of a spec whose value is the name of a Secret; of a ``secretKeyRef`` it is one of its fields."""


def faults(pods: Iterable[LocalPod], made: Collection[str], fields: Mapping[str, str]) -> list[str]:
    """A fault for each Secret that a pod does not start without and that is neither ``made`` for the run nor here.

    ``fields`` are those of the spec by the Secret that they name.
    """
    wanted: dict[str, dict[str, None]] = {}
    for pod in pods:
        for name, keys in (*_of_environment(pod), *_of_volumes(pod)):
            wanted.setdefault(name, {}).update(dict.fromkeys(keys))
    found = []
    for name, asked in sorted(wanted.items()):
        if name in made:
            continue
        try:
            usersecrets.read(name, tuple(asked))
        except EnvironmentFault as fault:
            found += [f"{fields[name]}: {problem}" if name in fields else problem for problem in fault.problems]
    return found


def fields(spec: Mapping[str, Any]) -> dict[str, str]:
    """The paths of the fields of a spec that name a Secret, by its name; of several the first."""
    found: dict[str, str] = {}
    for name, path in _named(spec, "spec"):
        found.setdefault(name, path)
    return found


def _named(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, member in value.items():
            inner = f"{path}.{key}"
            if key in _NAMES and isinstance(member, str):
                yield member, inner
            elif key == "secretKeyRef" and isinstance(member, Mapping):
                yield str(member.get("name")), inner
            else:
                yield from _named(member, inner)
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            yield from _named(member, f"{path}[{index}]")


def _of_environment(pod: LocalPod) -> Iterator[tuple[str, list[str]]]:
    for entry in pod.container.get("env") or ():
        reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
        if reference and not reference.get("optional"):
            yield str(reference["name"]), [str(reference["key"])]


def _of_volumes(pod: LocalPod) -> Iterator[tuple[str, list[str]]]:
    mounted = {mount["name"] for mount in pod.container.get("volumeMounts") or ()}
    for volume in pod.spec.get("volumes") or ():
        source = volume.get("secret")
        if volume["name"] in mounted and source and not source.get("optional"):
            yield str(source["secretName"]), [str(item["key"]) for item in source.get("items") or ()]
