"""Checks of values in a user's pod template, as the apiserver makes them when it gets the pod.

Only what would be refused there, or be lost on the way, is a fault here: the Deployment is
applied later, where the user no longer looks. Fields and types are checked by ``check_fields``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..api import base, metadata
from ..api.faults import Fault
from . import check_env, check_fields, check_resources, template

_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_LABEL = re.compile(base.NAMESPACE_PATTERN)
_PROBE_NUMBERS = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_WITH_PORT = ("httpGet", "tcpSocket", "grpc")
_LONGEST_PORT_NAME = 15
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")


def faults(user: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """Faults in the values of ``user``, a template of any form at ``path``."""
    head, spec = template.section(user, "metadata"), template.section(user, "spec")
    yield from metadata.of_map(head.get("labels"), f"{path}.metadata.labels", labels=True)
    yield from metadata.of_map(head.get("annotations"), f"{path}.metadata.annotations", labels=False)
    yield from metadata.of_map(spec.get("nodeSelector"), f"{path}.spec.nodeSelector", labels=True)
    lists = [(kind, template.listed(spec, kind)) for kind in ("containers", "initContainers")]
    names = Counter(name for _, of in lists for c in of if isinstance(name := c.get("name"), str))
    for name in (name for name, count in names.items() if count > 1):
        yield Fault(f"{path}.spec.containers", f"{name} names {names[name]} containers: rename or remove one", name)
    for kind, containers in lists:
        for index, container in enumerate(containers):
            yield from _container(container, kind, f"{path}.spec.{kind}[{check_fields.label(container, index)}]")
    yield from _volumes(spec, f"{path}.spec.volumes")


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
    if kind == "initContainers" and container.get("restartPolicy") != "Always":
        for key in (*_PROBES, "lifecycle"):
            if container.get(key) is not None:
                message = "is for containers that go on running: remove it, or set restartPolicy to Always"
                yield Fault(f"{path}.{key}", message)
    yield from check_env.of_container(container, path)
    if container.get("resources") is not None and not rendered:
        yield from check_resources.of_container(container["resources"], f"{path}.resources")
    yield from _ports(container, f"{path}.ports")
    mounts = Counter(template.mounted_at(mount) for mount in template.listed(container, "volumeMounts"))
    for place in (place for place, count in mounts.items() if count > 1):
        yield Fault(f"{path}.volumeMounts", f"{place[:60]} is mounted twice: keep one mount", place[:60])


def _probe(probe: Any, name: str, path: str, rendered: bool) -> Iterator[Fault]:
    if probe is None:
        return
    yield from _handlers(probe, path, fewest=0 if rendered else 1)
    if name != "readinessProbe" and isinstance(probe, Mapping) and probe.get("successThreshold") not in (None, 1):
        shown = str(probe["successThreshold"])
        yield Fault(f"{path}.successThreshold", f"{shown}: Kubernetes takes 1 only here; remove it", shown)
    for key in _PROBE_NUMBERS:
        number = probe.get(key) if isinstance(probe, Mapping) else None
        if isinstance(number, int) and number < 0:
            yield Fault(f"{path}.{key}", f"{number} is negative: use 0 or more", str(number))
    grace = probe.get("terminationGracePeriodSeconds") if isinstance(probe, Mapping) else None
    if grace is not None and name == "readinessProbe":
        message = "has no use here, since a pod that is not ready goes on running: remove it"
        yield Fault(f"{path}.terminationGracePeriodSeconds", message)
    elif isinstance(grace, int) and grace < 1:
        yield Fault(f"{path}.terminationGracePeriodSeconds", f"{grace} is too short: use 1 or more", str(grace))


def _handlers(holder: Any, path: str, *, fewest: int) -> Iterator[Fault]:
    if not isinstance(holder, Mapping):
        return
    given = sorted(key for key in template.HANDLERS if holder.get(key) is not None)
    if len(given) > 1:
        yield Fault(path, f"{' and '.join(given)} exclude each other: keep one", ", ".join(given))
    elif len(given) < fewest:
        yield Fault(path, f"does nothing: give it one of {', '.join(sorted(template.HANDLERS))}")
    for kind in _WITH_PORT:
        port = template.section(holder, kind).get("port")
        if port is not None and not _is_port(port, named=kind != "grpc"):
            message = "is neither a port from 1 to 65535 nor the name of one" if kind != "grpc" else "is not a port"
            yield Fault(f"{path}.{kind}.port", f"{str(port)[:60]!r} {message}", str(port)[:60])


def _is_port(port: Any, *, named: bool) -> bool:
    if isinstance(port, str):
        return named and len(port) <= _LONGEST_PORT_NAME and _PORT_NAME.fullmatch(port) is not None
    return isinstance(port, int) and 1 <= port <= 65535


def _ports(container: Mapping[str, Any], path: str) -> Iterator[Fault]:
    declared = template.listed(container, "ports")
    names = Counter(str(port["name"]) for port in declared if port.get("name") is not None)
    pairs = Counter((str(port.get("containerPort")), str(port.get("protocol") or "TCP")) for port in declared)
    for name, count in names.items():
        if not _PORT_NAME.fullmatch(name) or len(name) > _LONGEST_PORT_NAME:
            yield Fault(path, f"{name[:60]!r} is no name of a port: at most 15 lowercase letters, digits, dashes", name)
        elif count > 1:
            yield Fault(path, f"{name} names {count} ports: rename one", name)
    for (declared_port, protocol), count in pairs.items():
        if count > 1:
            yield Fault(path, f"{declared_port[:60]}/{protocol[:60]} is declared twice: keep one")
    for number in (port.get("containerPort") for port in declared):
        if isinstance(number, int) and not 1 <= number <= 65535:
            yield Fault(path, f"containerPort {str(number)[:60]} is not a port from 1 to 65535")


def _volumes(spec: Mapping[str, Any], path: str) -> Iterator[Fault]:
    volumes = template.listed(spec, "volumes")
    names = Counter(name for volume in volumes if isinstance(name := volume.get("name"), str))
    for name, count in names.items():
        if count > 1:
            yield Fault(path, f"{name} names {count} volumes: rename or remove one", name)
        if not _LABEL.fullmatch(name) or len(name) > 63:
            yield Fault(path, f"{name[:60]!r} is no name of a volume: use lowercase letters, digits and dashes", name)
    for volume in volumes:
        sources = sorted(key for key in check_fields.table()["Volume"] if key != "name" and volume.get(key) is not None)
        if len(sources) > 1:
            message = f"has {len(sources)} sources ({', '.join(sources)}): a volume has one; keep one"
            yield Fault(f"{path}[{volume.get('name')}]", message, ", ".join(sources))
