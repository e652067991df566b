"""What goes into a plan and what comes out. All frozen; manifests are plain JSON-able dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import __version__
from ..api.faults import printable
from ..model_facts import ModelFacts
from ..profile import KVProfile
from ..reasons import Reason

Manifest = Mapping[str, Any]

CONNECTOR_IMAGE = f"kvserving/connector:{__version__}"


@dataclass(frozen=True)
class Site:
    """Where a plan is to run.

    ``discovery_file`` is the router's worker list on the local site; by default the router
    reads its path from ``KVSERVING_DISCOVERY_FILE``. ``connector_image`` holds the connector
    package under ``/connector``. The namespaces are those from which the operator and the
    monitoring may reach the pods.
    """

    kind: Literal["cluster", "local"]
    discovery_file: str | None = None
    connector_image: str = CONNECTOR_IMAGE
    operator_namespace: str = "kvserving-system"
    monitoring_namespace: str = "monitoring"

    @property
    def local(self) -> bool:
        """Whether pods run as processes of one machine."""
        return self.kind == "local"


CLUSTER = Site("cluster")


@dataclass(frozen=True)
class Observed:
    """What was read outside the plan: the running engine, the model's facts, installed kinds."""

    engine_version: str | None = None
    engine_image: str | None = None
    facts: ModelFacts | None = None
    kinds: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class GeneratedSecret:
    """A Secret that is created once with random values and then left alone.

    ``keys`` maps each key to its number of random bytes; values are lower-case hexadecimal.
    """

    name: str
    keys: Mapping[str, int]


@dataclass(frozen=True)
class Notice:
    """Something the user should know that is no fault."""

    reason: Reason
    path: str
    message: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.message}")


@dataclass(frozen=True)
class Plan:
    """Everything that should exist for one object."""

    name: str
    namespace: str
    revision: str
    profile: KVProfile
    objects: tuple[Manifest, ...]
    generated_secrets: tuple[GeneratedSecret, ...]
    notices: tuple[Notice, ...]
