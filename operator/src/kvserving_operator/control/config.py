"""Settings of the operator process, from flags and environment (``cli/operator.py`` names both)."""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..plan.types import CONNECTOR_IMAGE

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

FIELD_MANAGER = "kvserving-operator"
"""The one manager of every field that the operator applies."""
ROLLOUT_MANAGER = f"{FIELD_MANAGER}-rollout"
"""The manager of what a rollout takes from these meanwhile: numbers and traffic of sets that come and go."""


def own_identity() -> str:
    """Name of this process in the Lease: two processes of one host must not take each other for themselves."""
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Election:
    """Election of the one operator that writes, by a Lease. Times are in seconds.

    ``enabled`` is off where one operator runs at most. A holder that did not renew for
    ``renew_deadline`` ends; others take over after ``duration``.
    """

    enabled: bool = True
    name: str = "kvserving-operator"
    duration: int = 15
    renew_deadline: int = 10
    retry_period: int = 2

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > 1.2 * self.retry_period >= 1.2:
            raise ValueError(
                f"lease duration {self.duration} s, renew deadline {self.renew_deadline} s, retry period "
                f"{self.retry_period} s: each must exceed the next (the deadline by a fifth), the last be 1 or more"
            )


@dataclass(frozen=True)
class Config:
    """Settings of one operator process.

    ``namespaces`` are those that are served, all when empty. ``namespace`` is the operator's own: its Lease
    lives there. Without ``kubeconfig``, the pod's service account is used. ``resync_seconds`` is the time between
    full comparisons with the cluster, ``counters_seconds`` that between looks at the engines' counters.
    ``write_rate`` and ``write_burst`` bound writes per second. ``listen`` serves ``/metrics``, ``/healthz``
    and ``/readyz``.
    """

    namespaces: tuple[str, ...] = ()
    namespace: str = "kvserving-system"
    kubeconfig: Path | None = None
    identity: str = field(default_factory=own_identity)
    workers: int = 16
    resync_seconds: float = 600.0
    counters_seconds: float = 15.0
    write_rate: float = 300.0
    write_burst: int = 600
    request_timeout: float = 30.0
    listen_host: str = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus come from outside the pod
    listen_port: int = 8080
    election: Election = Election()
    connector_image: str = CONNECTOR_IMAGE
    monitoring_namespace: str = "monitoring"
    log_format: Literal["json", "text"] = "json"
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name in ("workers", "resync_seconds", "counters_seconds", "write_rate", "write_burst", "request_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be greater than zero")
        for flag, names in (("--namespace", self.namespaces), ("--own-namespace", (self.namespace,))):
            for name in names:
                if not _NAMESPACE.fullmatch(name):
                    hint = "; leave the option out to serve all" if flag == "--namespace" else ""
                    raise ValueError(f"{flag} {name!r} is no name of a namespace{hint}")
