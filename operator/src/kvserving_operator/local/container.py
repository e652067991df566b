"""From a pod template to the command and environment of a process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ManifestFault, NoSuchKey
from .pods import LocalPod
from .variables import expand
from .volumes import rewrite

BIND_ADDRESS = "KVSERVING_BIND_ADDRESS"
_PYTHON = ("python3", "python")
# PYTHONDONTWRITEBYTECODE: an engine imports thousands of modules in three processes; without bytecode each start
# compiles them again and takes twice as long.
_NOT_INHERITED = re.compile(
    r"(KVSERVING|VLLM|UCX|NIXL|SMG)_|PYTHONHASHSEED$|PYTHONDONTWRITEBYTECODE$|VIRTUAL_ENV$|RUST_LOG$"
)


@dataclass(frozen=True)
class Placement:
    """What a pod gets from this machine.

    ``environment`` wins over the template's own values, ``defaults`` are used where the
    template sets nothing. ``listen`` replaces the address of the router's data port.
    ``secret(name, key)`` raises ``NoSuchKey`` for one that is not there.
    """

    address: str
    interpreter: str
    mounts: Mapping[str, str]
    environment: Mapping[str, str]
    defaults: Mapping[str, str]
    secret: Callable[[str, str], str]
    config_map: Callable[[str], Mapping[str, str]]
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Addresses of names that a cluster's DNS would know."""
    listen: tuple[str, int] | None = None


@dataclass(frozen=True)
class ProcessSpec:
    """A process to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def process_spec(pod: LocalPod, place: Placement, inherited: Mapping[str, str] | None = None) -> ProcessSpec:
    """Command and environment of the pod's main container as a process on this machine.

    The environment begins with ``inherited`` (ours by default) without what would change
    how engines and routers behave, then the template's, then the placement's.
    """
    base = os.environ if inherited is None else inherited
    env = {name: value for name, value in base.items() if not _NOT_INHERITED.match(name)}
    own: dict[str, str] = {}
    for name, value in _declared(pod, place):
        own[name] = place.environment.get(name, _here(expand(value, own), place))
    own = {**place.defaults, **own, **place.environment}
    if own.get("PYTHONPATH") and base.get("PYTHONPATH"):
        own["PYTHONPATH"] += os.pathsep + base["PYTHONPATH"]
    command = [str(part) for part in (*(pod.container.get("command") or ()), *(pod.container.get("args") or ()))]
    if not command:
        raise ManifestFault(f"{pod.name}: the container has no command; a process needs one")
    argv = [_here(expand(part, own), place) for part in command]
    if place.listen is not None:
        argv = listen_at(argv, *place.listen)
    return ProcessSpec(tuple(with_interpreter(argv, place.interpreter)), {**env, **own})


def _here(text: str, place: Placement) -> str:
    """``text`` with the paths and host names of a pod replaced by those of this machine."""
    for host in sorted(place.hosts, key=len, reverse=True):
        text = text.replace(host, place.hosts[host])
    return rewrite(text, place.mounts)


def with_interpreter(argv: list[str], interpreter: str) -> list[str]:
    """Replace a leading ``python3`` by the interpreter of the environment that has the packages."""
    return [interpreter, *argv[1:]] if argv[0] in _PYTHON else argv


def listen_at(argv: list[str], host: str, port: int) -> list[str]:
    """Let a router serve at ``host:port``.

    Its extra port for probes is left out: it would be bound at the same host, where two
    services would want the same one, and the data port answers the same paths.
    """
    values = {"--host": host, "--port": str(port), "--health-check-port": None}
    result: list[str] = []
    rest = iter(argv)
    for argument in rest:
        flag, equals, _ = argument.partition("=")
        if flag not in values:
            result.append(argument)
            continue
        if not equals:
            next(rest, None)
        if (value := values[flag]) is not None:
            result += [flag, value]
    return result


def _declared(pod: LocalPod, place: Placement) -> list[tuple[str, str]]:
    """Names and values of the template's variables in order, before expansion."""
    values: list[tuple[str, str]] = []
    for entry in pod.container.get("env") or ():
        name = str(entry["name"])
        source = entry.get("valueFrom")
        if source is None:
            values.append((name, str(entry.get("value") or "")))
        elif (value := _from_source(pod, name, source, place)) is not None:
            values.append((name, value.replace("$", "$$")))
    return values


def _from_source(pod: LocalPod, name: str, source: Mapping[str, Any], place: Placement) -> str | None:
    if field := source.get("fieldRef"):
        return _field(pod, name, str(field["fieldPath"]), place.address)
    if reference := source.get("secretKeyRef"):
        try:
            return place.secret(str(reference["name"]), str(reference["key"]))
        except NoSuchKey:
            if not reference.get("optional"):
                raise
            return None
    if reference := source.get("configMapKeyRef"):
        value = place.config_map(str(reference["name"])).get(str(reference["key"]))
        if value is None and not reference.get("optional"):
            raise ManifestFault(f"{pod.name}: {name}: ConfigMap {reference['name']} has no key {reference['key']!r}")
        return value
    raise ManifestFault(f"{pod.name}: {name}: {', '.join(source)} cannot be had on one machine")


def _field(pod: LocalPod, name: str, path: str, address: str) -> str:
    fields = {
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": address,
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": str(pod.metadata.get("uid") or pod.name),
        "spec.nodeName": os.uname().nodename,
        "spec.serviceAccountName": str(pod.spec.get("serviceAccountName") or "default"),
    }
    if path in fields:
        return fields[path]
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str((pod.metadata.get(match.group(1)) or {}).get(match.group(2), ""))
    raise ManifestFault(f"{pod.name}: {name}: field {path} is not known on one machine")
