"""Pods that the Deployments of a plan ask for, as the executor runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..routers import CONNECTOR_ANNOTATION
from .errors import ManifestFault
from .variables import expand

Manifest = Mapping[str, Any]

NAME_LABEL = "kvserving.dev/name"
ROLE_LABEL = "kvserving.dev/role"
ENGINE_ROLES = ("prefill", "decode")
MAIN_CONTAINERS = ("engine", "router", "store")
START_ORDER = ("store", "prefill", "decode", "router")


@dataclass(frozen=True)
class LocalPod:
    """One pod to run: a copy of a workload's template with a name of its own.

    ``host`` is the name under which a cluster's DNS has a store's pod; empty where it has none. ``given`` are the
    arguments that the object gives an engine, by the field that holds them.
    """

    name: str
    role: str
    namespace: str
    metadata: Manifest
    spec: Manifest
    container: Manifest
    host: str = ""
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """Port named ``http`` of the main container, otherwise its first."""
        ports = self.container.get("ports") or ()
        for port in ports:
            if port.get("name") == "http":
                return int(port["containerPort"])
        if not ports:
            raise ManifestFault(f"{self.name}: container {self.container['name']} names no port")
        return int(ports[0]["containerPort"])

    @property
    def port_numbers(self) -> tuple[int, ...]:
        """Every port of the main container."""
        return tuple(int(port["containerPort"]) for port in self.container.get("ports") or ())

    @property
    def is_engine(self) -> bool:
        """Whether this is a prefill or decode engine."""
        return self.role in ENGINE_ROLES

    @property
    def is_python(self) -> bool:
        """Whether its command is Python, which is that of this machine's environment here."""
        return str((self.container.get("command") or [""])[0]) in ("python3", "python")

    @property
    def connector(self) -> str | None:
        """KV connector that the router is told of."""
        value = (self.metadata.get("annotations") or {}).get(CONNECTOR_ANNOTATION)
        return None if value is None else str(value)

    @property
    def grace(self) -> float:
        """Seconds from the request to stop until the pod is killed."""
        return float(self.spec.get("terminationGracePeriodSeconds", 30))

    @property
    def gpus(self) -> int:
        """Number of GPUs that the main container asks for."""
        resources = self.container.get("resources") or {}
        limits = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        return sum(int(str(number)) for name, number in limits.items() if name.endswith("/gpu"))

    def option(self, flag: str) -> str | None:
        """Value of ``--flag`` among the arguments, the last one where it stands twice.

        ``$$`` is a dollar sign; references to variables stay as they are.
        """
        arguments = [str(a) for a in self.container.get("args") or ()]
        value = None
        for index, argument in enumerate(arguments):
            if argument.startswith(f"{flag}="):
                value = argument.partition("=")[2]
            elif argument == flag and index + 1 < len(arguments):
                value = arguments[index + 1]
        return value if value is None else expand(value, {})


def of_objects(objects: Sequence[Manifest]) -> tuple[list[LocalPod], list[str]]:
    """Pods of the plan's workloads in start order, and what is different from a cluster, in sentences.

    Raises ``ManifestFault`` for a workload that one machine cannot run.
    """
    pods: list[LocalPod] = []
    notices: list[str] = []
    for manifest in objects:
        metadata = manifest.get("metadata") or {}
        role = (metadata.get("labels") or {}).get(ROLE_LABEL)
        if role is None or "template" not in (manifest.get("spec") or {}):
            continue
        if manifest["kind"] != ("StatefulSet" if role == "store" else "Deployment") or role not in START_ORDER:
            raise ManifestFault(
                f"{manifest['kind']} {metadata.get('name')} ({role}) does not run on one machine: the executor runs"
                " engines on one node, a router and a store. Leave out nodes above 1"
            )
        pods += _copies(manifest, str(role), notices)
    return sorted(pods, key=lambda pod: START_ORDER.index(pod.role)), notices


def replicas(objects: Sequence[Manifest]) -> dict[str, int]:
    """Number of pods that the plan asks for, by role."""
    asked = {}
    for manifest in objects:
        role = ((manifest.get("metadata") or {}).get("labels") or {}).get(ROLE_LABEL)
        if role is not None and "template" in (manifest.get("spec") or {}):
            asked[str(role)] = _number(manifest)
    return asked


def _number(manifest: Manifest) -> int:
    number = manifest["spec"].get("replicas")
    return 1 if number is None else int(number)


def config_maps(objects: Sequence[Manifest]) -> dict[str, dict[str, str]]:
    """Text of every ConfigMap of the plan, by its name."""
    return {str(m["metadata"]["name"]): dict(m.get("data") or {}) for m in objects if m["kind"] == "ConfigMap"}


def _copies(manifest: Manifest, role: str, notices: list[str]) -> list[LocalPod]:
    spec = manifest["spec"]
    template = spec["template"]
    number = min(1, _number(manifest)) if role == "router" else _number(manifest)
    containers = template["spec"]["containers"]
    main = [c for c in containers if c["name"] in MAIN_CONTAINERS]
    if len(main) != 1:
        names = ", ".join(MAIN_CONTAINERS)
        raise ManifestFault(f"{manifest['metadata']['name']}: needs one container named one of {names}")
    for other in (c["name"] for c in containers if c is not main[0]):
        notices.append(f"container {other!r} of {role} is not run on one machine: only {main[0]['name']} is")
    labels = manifest["metadata"]["labels"]
    workload = manifest["metadata"]["name"]
    service = labels.get(NAME_LABEL, workload)
    namespace = str(manifest["metadata"].get("namespace", "default"))
    domain = f"{spec['serviceName']}.{namespace}.svc" if "serviceName" in spec else ""
    return [
        LocalPod(
            name=f"{service}-{role}-{index}",
            role=role,
            namespace=namespace,
            metadata=template.get("metadata") or {},
            spec=template["spec"],
            container=main[0],
            host=f"{workload}-{index}.{domain}" if domain else "",
        )
        for index in range(number)
    ]
