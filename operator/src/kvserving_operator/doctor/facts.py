"""What was looked at, trimmed of secrets. Plain data: checks read it, gatherers and tests make it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ..api.faults import Fault
from ..api.v1alpha1 import KVServing
from ..plan.types import Plan

Body = Mapping[str, Any]
"""An object as the apiserver sent it."""


@dataclass(frozen=True)
class Series:
    """What an engine exports: every sample as (name, labels, value)."""

    samples: tuple[tuple[str, Mapping[str, str], float], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Series:
        """The samples in ``text``. Raises ``ValueError`` when it is no Prometheus text."""
        families = text_string_to_metric_families(text)
        return cls(tuple((s.name, dict(s.labels), s.value) for family in families for s in family.samples))

    def has(self, name: str) -> bool:
        """Whether there is a sample of this name."""
        return any(found == name for found, _, _ in self.samples)

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples of ``name`` that carry ``labels``; 0 where there are none."""
        return sum(
            value for found, carried, value in self.samples if found == name and labels.items() <= carried.items()
        )

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums of ``name`` by the values of ``label``, without zeros."""
        sums: dict[str, float] = {}
        for found, carried, value in self.samples:
            if found == name:
                sums[carried.get(label, "")] = sums.get(carried.get(label, ""), 0) + value
        return {key: value for key, value in sums.items() if value}

    def label(self, name: str, label: str) -> str | None:
        """The label's value in the first sample of ``name``; ``None`` without one."""
        return next((carried.get(label) for found, carried, _ in self.samples if found == name), None)


@dataclass(frozen=True)
class Engine:
    """What one engine answered: its version as it says it, and its series."""

    version: str | None
    series: Series


@dataclass(frozen=True)
class Keys:
    """Names of the keys of one Secret; ``empty`` are those without content. Never a value."""

    names: frozenset[str]
    empty: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Unread:
    """Something that could not be looked at, and why."""

    what: str
    reason: str
    fix: str


@dataclass(frozen=True)
class Operators:
    """The operators' Deployments in all namespaces, and the Leases that somebody holds now, as (namespace, name);
    ``None`` where those may not be read."""

    deployments: tuple[Body, ...]
    held: frozenset[tuple[str, str]] | None = None


@dataclass(frozen=True)
class Disk:
    """The disk of a folder, in bytes: of all of it, and what is left."""

    folder: str
    total: int
    free: int


@dataclass(frozen=True)
class Live:
    """One object in its cluster.

    ``children`` are what carries the object's label, pods apart. ``secrets`` has an entry for each Secret that was
    asked for: ``None`` where it does not exist. ``engines`` are the answers by pod, ``claims`` the claims that the
    pods mount. ``nodes``, ``secrets``, ``operators`` and ``schema`` (the published schema of the kind) are ``None``
    where they may not be read, ``hidden`` are the kinds of children and pods for which that holds; ``unread`` says why.
    ``disk`` is the one under a store in a folder of this machine.
    """

    body: Body
    children: tuple[Body, ...] = ()
    pods: tuple[Body, ...] = ()
    events: tuple[Body, ...] = ()
    nodes: tuple[Body, ...] | None = None
    secrets: Mapping[str, Keys | None] | None = None
    claims: Mapping[str, Body | None] = field(default_factory=dict)
    engines: Mapping[str, Engine] = field(default_factory=dict)
    schema: Body | None = None
    hidden: frozenset[str] = frozenset()
    unread: tuple[Unread, ...] = ()
    absent: frozenset[str] = frozenset()
    namespace: Body | None = None
    quotas: tuple[Body, ...] | None = None
    ranges: tuple[Body, ...] | None = None
    classes: tuple[Body, ...] | None = None
    operators: Operators | None = None
    disk: Disk | None = None

    @property
    def generation(self) -> int:
        """The generation of the spec."""
        return int((self.body.get("metadata") or {}).get("generation") or 0)

    @property
    def behind(self) -> bool:
        """Whether no operator has taken up the spec yet: what is there is not what is planned, and nobody's fault."""
        seen = self.status.get("observedGeneration")
        return seen is None or int(seen) < self.generation

    @property
    def status(self) -> Body:
        """The object's status; empty where nobody has written one."""
        found: Body = self.body.get("status") or {}
        return found

    def pods_of(self, *roles: str) -> tuple[Body, ...]:
        """Pods of these roles that are not being deleted."""
        return tuple(
            pod for pod in self.pods if role_of(pod) in roles and "deletionTimestamp" not in (pod.get("metadata") or {})
        )


@dataclass(frozen=True)
class ObjectFacts:
    """One object: as written, as planned and, where it is in a cluster, as it is there.

    ``serving`` is ``None`` where the object cannot be read, ``plan`` where ``faults`` forbid one. ``model`` says why
    this machine cannot serve the model's files and ``disks`` which of its disks do not hold what is written, each with
    the way out, where it was looked at for this machine.
    """

    name: str
    namespace: str
    serving: KVServing | None
    plan: Plan | None
    faults: tuple[Fault, ...] = ()
    live: Live | None = None
    model: tuple[tuple[str, str], ...] = ()
    disks: tuple[tuple[str, str], ...] = ()
    local: bool = False
    """Whether it was looked at for this machine, not for a cluster."""


@dataclass(frozen=True)
class Process:
    """One pod of a service on this machine. ``last_exit`` is in words, empty where it has not ended, and ``notable``
    what is known of why it is not ready. ``early`` is how often it ended since it was ready last, or ever, ``losses``
    how often it ended after it had been ready; ``None`` where that is not known. ``since`` is the age of its phase in
    seconds, ``loaded`` how long its last start took until it was ready, 0 before the first."""

    name: str
    role: str
    phase: str
    ready: bool
    restarts: int
    last_exit: str
    notable: str = ""
    early: int = 0
    losses: int | None = None
    since: float = 0.0
    loaded: float = 0.0


@dataclass(frozen=True)
class ServiceFacts:
    """One service that runs on this machine. ``version`` is that of the installed vLLM; ``verified`` is ``None`` before
    the first verification, ``proof`` its last sentence, ``caveat`` what has to be said before it. ``engines`` are the
    answers by pod. ``explained``: whether status shows the last lines of a log of a failure. ``silent`` are seconds
    since the state was written. ``disk_free`` are bytes that the folder of all services has left; ``disk`` is the one
    under L2, where that lies in a folder, ``store_size`` what L2 may take.
    """

    name: str
    phase: str
    message: str
    revision: str
    version: str | None
    pods: tuple[Process, ...]
    verified: bool | None
    proof: str
    caveat: str = ""
    engines: Mapping[str, Engine] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    explained: bool = False
    silent: float = 0.0
    disk_free: int | None = None
    disk: Disk | None = None
    store_size: int = 0


@dataclass(frozen=True)
class Permission:
    """One right that was asked for: ``who`` may do ``what``, and what cannot work without it."""

    who: str
    what: str
    allowed: bool
    needed_for: str


@dataclass(frozen=True)
class ClusterFacts:
    """One cluster. Lists that may not be read are ``None``, and ``version`` is empty then.

    ``kinds`` are (apiVersion, kind) that it has of those that an operator uses. ``operators`` are the operator's
    Deployments, ``schema`` is the published schema of the kind, ``needs`` are the objects of it that ask for each kind
    of child. ``daemons`` are all DaemonSets, ``dns`` the endpoints of the cluster's DNS. ``clocks`` are how far the
    clocks of nodes are ahead of the apiserver's, in seconds. ``pods`` are those of the operators.
    """

    server: str
    version: str
    kinds: frozenset[tuple[str, str]] | None
    schema: Body | None = None
    nodes: tuple[Body, ...] | None = None
    operators: tuple[Body, ...] | None = None
    storage_classes: tuple[Body, ...] | None = None
    permissions: tuple[Permission, ...] = ()
    unread: tuple[Unread, ...] = ()
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    daemons: tuple[Body, ...] | None = None
    dns: tuple[Body, ...] | None = None
    clocks: Mapping[str, float] = field(default_factory=dict)
    pods: tuple[Body, ...] | None = None


def role_of(body: Body) -> str:
    """The role in the labels of a child or pod; empty without one."""
    return str(((body.get("metadata") or {}).get("labels") or {}).get("kvserving.dev/role", ""))


def name_of(body: Body) -> str:
    """Kind and name of a child, name alone of what carries no kind."""
    name = str((body.get("metadata") or {}).get("name", "?"))
    return f"{body['kind']} {name}" if body.get("kind") else name


def unique(found: Iterable[Unread]) -> tuple[Unread, ...]:
    """``found``, each once."""
    return tuple(dict.fromkeys(found))
