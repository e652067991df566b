"""The parts that watch and reconcile, put together for one who writes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter

from ..plan.types import Site
from . import app, preflight
from .apply import Applier
from .config import Config
from .events import Recorder
from .kube import Kube
from .metrics import Metrics
from .observe import Key, Store
from .permissions import Resource
from .reconcile import Reconciler
from .restarts import Restarts
from .resync import Resync
from .secrets import SecretKeeper
from .source import Source, Watches
from .verification import Probe, Verifications
from .workqueue import WorkQueue

log = logging.getLogger(__name__)


class Kinds:
    """The kinds that the cluster has, as they were seen last. Who applies and who reconciles is told of them."""

    def __init__(self, kube: Kube, found: preflight.Installed, applier: Applier, reconciler: Reconciler) -> None:
        self._kube = kube
        self._applier = applier
        self._reconciler = reconciler
        self._take(found)

    def watched(self) -> tuple[Resource, ...]:
        """Return the kinds that are worth a watch."""
        return app.watched(self._found)

    async def look_again(self) -> None:
        """Ask the cluster once more, and log which kinds came since. Raises ``ApiFailure``."""
        known = self.watched()
        self._take(await preflight.installed(self._kube))
        if late := sorted(found.full_name for found in set(self.watched()) - set(known)):
            how = "changes are seen at each resync, and at once after a restart"
            log.warning("installed since the start: %s; %s", ", ".join(late), how)

    def _take(self, found: preflight.Installed) -> None:
        self._found = found
        self._applier.absent, self._reconciler.optional_kinds = found.absent, found.optional_kinds


@dataclass(frozen=True)
class Parts:
    """What runs beside each other while this process is the one that writes."""

    kinds: Kinds
    secrets: SecretKeeper
    restarts: Restarts
    verifications: Verifications
    reconciler: Reconciler
    resync: Resync
    watches: Watches


def assemble(
    config: Config,
    kube: Kube,
    store: Store,
    queue: WorkQueue[Key],
    metrics: Metrics,
    *,
    probe: Probe,
    held_before: Callable[[], float | None],
    found: preflight.Installed,
    login: Callable[[], Any],
) -> Parts:
    """Make the parts; none of them does anything yet.

    ``held_before`` says when the last holder of the Lease wrote it, ``found`` which kinds the cluster has, ``login``
    how its watches connect.
    """
    secrets = SecretKeeper(kube, time.monotonic)
    applier = Applier(kube, store)
    recorder = Recorder(kube, config.identity, _counting(metrics.events))
    restarts = Restarts(kube, store, recorder, queue.add, _counting(metrics.engines_replaced), time.monotonic)
    verifications = Verifications(
        secrets.read, queue.add, _counting(metrics.verifications), time.monotonic, probe=restarts.overhear(probe)
    )
    site = Site(
        "cluster",
        connector_image=config.connector_image,
        operator_namespace=config.namespace,
        monitoring_namespace=config.monitoring_namespace,
    )
    reconciler = Reconciler(
        kube,
        store,
        applier,
        secrets,
        verifications,
        recorder,
        site,
        troubles=restarts.problems,
        replaced=restarts.replaced,
        watched_until=held_before,
    )
    kinds = Kinds(kube, found, applier, reconciler)
    healed, resyncs = metrics.healed.inc, metrics.resyncs.inc
    resync = Resync(kube, store, queue, kinds.watched, config.namespaces, healed, resyncs)
    # Watches that begin anew are of the kinds of the start too: those that came since are seen at each resync.
    watched = kinds.watched()

    def source() -> Source:
        return Source(watched, store, login, config.namespaces, resync.soon)

    watches = Watches(source, resync.soon, time.monotonic)
    return Parts(kinds, secrets, restarts, verifications, reconciler, resync, watches)


def _counting(counter: Counter) -> Callable[[str], None]:
    """Return what counts a reason."""
    return lambda reason: counter.labels(reason).inc()
