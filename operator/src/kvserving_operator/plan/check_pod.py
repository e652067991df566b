"""Checks of the form of a user's pod template, as the apiserver makes them when it gets the pod.

Only what would be refused there, or be lost on the way, is a fault here: the Deployment is
applied later, where the user no longer looks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..api import base
from ..api.faults import Fault
from ..api.parse import join
from . import check_env, check_resources, template

_MOST = 2**31 - 1
_AMOUNTS = frozenset({"limits", "requests", "sizeLimit", "divisor", "storage", "overhead"})
_TEXTS = frozenset({"env", "labels", "annotations", "nodeSelector", "command", "args", "ports"})
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_LABEL = re.compile(base.NAMESPACE_PATTERN)
_LABEL_KEY = re.compile(base.LABEL_KEY_PATTERN)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")


def faults(user: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """Faults in the form of ``user``, a template of any form at ``path``."""
    yield from _values(user, path)
    metadata, spec = template.section(user, "metadata"), template.section(user, "spec")
    for kind, of, where in (("labels", metadata, "metadata"), ("nodeSelector", spec, "spec")):
        yield from _texts(of.get(kind), f"{path}.{where}.{kind}", labels=True)
    yield from _texts(metadata.get("annotations"), f"{path}.metadata.annotations", labels=False)
    lists = [(kind, template.listed(spec, kind)) for kind in ("containers", "initContainers")]
    names = Counter(str(container.get("name")) for _, containers in lists for container in containers)
    for name in (name for name, count in names.items() if count > 1):
        yield Fault(f"{path}.spec.containers", f"{name} names {names[name]} containers: rename or remove one", name)
    for kind, containers in lists:
        for container in containers:
            yield from _container(container, kind, f"{path}.spec.{kind}[{container.get('name')}]")
    yield from _volumes(spec, f"{path}.spec.volumes")


def _values(value: Any, path: str, *, texts: bool = False) -> Iterator[Fault]:
    """Directives of a patch and numbers that a pod has no room for, at every depth.

    Below ``texts`` other checks refuse all numbers.
    """
    if isinstance(value, Mapping):
        for key, member in value.items():
            if str(key).startswith("$"):
                message = "is a directive of a patch, and a template is none: leave it out; null keeps what is rendered"
                yield Fault(f"{path}.{key}", message, str(key))
            elif key == "tolerationSeconds":
                continue
            elif key not in _AMOUNTS:
                yield from _values(member, join(path, str(key)), texts=texts or key in _TEXTS)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _values(member, f"{path}[{index}]", texts=texts)
    elif texts:
        return
    elif isinstance(value, float):
        yield Fault(path, f"{value} has a fraction: a pod template has whole numbers here", str(value))
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MOST:
        yield Fault(path, f"{value} is more than {_MOST}, which is as much as Kubernetes takes", str(value))


def _texts(values: Any, path: str, *, labels: bool) -> Iterator[Fault]:
    for key, value in values.items() if isinstance(values, Mapping) else ():
        if not _LABEL_KEY.fullmatch(str(key)):
            if not str(key).startswith("$"):
                yield Fault(path, f"{str(key)[:60]!r} is no key of a label or annotation", str(key)[:60])
        elif value is not None and not isinstance(value, str):
            yield Fault(join(path, str(key)), f"{str(value)[:60]} is not text: put it in quotes", str(value)[:60])
        elif labels and value is not None and not _LABEL_VALUE.fullmatch(value):
            message = "is no value of a label: at most 63 letters, digits, dashes, dots and underscores"
            yield Fault(join(path, str(key)), f"{value[:60]!r} {message}", value[:60])


def _container(container: Mapping[str, Any], kind: str, path: str) -> Iterator[Fault]:
    name = str(container.get("name"))
    rendered = kind == "containers" and name == "engine"
    if not _LABEL.fullmatch(name) or len(name) > 63:
        yield Fault(path, f"{name[:60]!r} is no name of a container: use lowercase letters, digits and dashes", name)
    if not rendered and not (isinstance(container.get("image"), str) and container["image"].strip()):
        hint = "; the container that is merged with the rendered one is named engine" if kind == "containers" else ""
        yield Fault(path, f"has no image: give it one{hint}", name)
    for probe in _PROBES:
        yield from _probe(container.get(probe), probe, f"{path}.{probe}", rendered)
    for event in ("postStart", "preStop"):
        handler = template.section(container, "lifecycle").get(event)
        if handler is not None:
            yield from _handlers(handler, f"{path}.lifecycle.{event}", fewest=1)
    yield from check_env.of_container(container, path)
    if container.get("resources") is not None and not rendered:
        yield from check_resources.of_container(container["resources"], f"{path}.resources")
    for key in ("command", "args"):
        words = container.get(key)
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            yield Fault(f"{path}.{key}", "must be a list of texts: put numbers in quotes")
    yield from _ports(container, f"{path}.ports")
    mounts = Counter(str(mount.get("mountPath")) for mount in template.listed(container, "volumeMounts"))
    for place in (place for place, count in mounts.items() if count > 1):
        yield Fault(f"{path}.volumeMounts", f"{place} is mounted twice: keep one mount", place)


def _probe(probe: Any, name: str, path: str, rendered: bool) -> Iterator[Fault]:
    if probe is None:
        return
    yield from _handlers(probe, path, fewest=0 if rendered else 1)
    if name != "readinessProbe" and isinstance(probe, Mapping) and probe.get("successThreshold") not in (None, 1):
        shown = str(probe["successThreshold"])
        yield Fault(f"{path}.successThreshold", f"{shown}: Kubernetes takes 1 only here; remove it", shown)


def _handlers(holder: Any, path: str, *, fewest: int) -> Iterator[Fault]:
    if not isinstance(holder, Mapping):
        yield Fault(path, "must be an object")
        return
    given = sorted(key for key in template.HANDLERS if holder.get(key) is not None)
    if len(given) > 1:
        yield Fault(path, f"{' and '.join(given)} exclude each other: keep one", ", ".join(given))
    elif len(given) < fewest:
        yield Fault(path, f"does nothing: give it one of {', '.join(sorted(template.HANDLERS))}")
    for key in given:
        if not isinstance(holder[key], Mapping):
            yield Fault(f"{path}.{key}", "must be an object")


def _ports(container: Mapping[str, Any], path: str) -> Iterator[Fault]:
    declared = template.listed(container, "ports")
    names = Counter(str(port["name"]) for port in declared if port.get("name") is not None)
    pairs = Counter((str(port.get("containerPort")), str(port.get("protocol") or "TCP")) for port in declared)
    for name, count in names.items():
        if not _PORT_NAME.fullmatch(name) or len(name) > 15:
            yield Fault(path, f"{name[:60]!r} is no name of a port: at most 15 lowercase letters, digits, dashes", name)
        elif count > 1:
            yield Fault(path, f"{name} names {count} ports: rename one", name)
    for (declared_port, protocol), count in pairs.items():
        if count > 1:
            yield Fault(path, f"{declared_port[:60]}/{protocol[:60]} is declared twice: keep one")
    for number in (port.get("containerPort") for port in declared):
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 65535:
            yield Fault(path, f"containerPort {str(number)[:60]} is not a port from 1 to 65535")


def _volumes(spec: Mapping[str, Any], path: str) -> Iterator[Fault]:
    volumes = template.listed(spec, "volumes")
    names = Counter(str(volume.get("name")) for volume in volumes)
    for name, count in names.items():
        if count > 1:
            yield Fault(path, f"{name} names {count} volumes: rename or remove one", name)
        if not _LABEL.fullmatch(name) or len(name) > 63:
            yield Fault(path, f"{name[:60]!r} is no name of a volume: use lowercase letters, digits and dashes", name)
    for volume in volumes:
        sources = sorted(
            str(key) for key in volume if key != "name" and volume[key] is not None and not str(key).startswith("$")
        )
        if len(sources) > 1:
            message = f"has {len(sources)} sources ({', '.join(sources)}): a volume has one; keep one"
            yield Fault(f"{path}[{volume.get('name')}]", message, ", ".join(sources))
