"""The L2 tier: a secondary tier of vLLM's TieringOffloadingSpec on a store that engines share.

Everything here runs in the scheduler's process. The scheduler's thread only looks at states and queues; existence is
probed by vLLM's AsyncLookupManager in its thread, bytes move in the threads of ``store.transfers``. Whatever the store
does ends in a miss or a skipped store and a counter, never in an exception.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from kvserving_connector.settings import logger
from kvserving_connector.store.address import Credentials
from kvserving_connector.store.announcement import Announcement
from kvserving_connector.store.client import Reason, StoreClient
from kvserving_connector.store.gate import FIRST_PAUSE, LATE_SECONDS, Gate
from kvserving_connector.store.namespace import Namespace, minor
from kvserving_connector.store.open import kind_of, open_store
from kvserving_connector.store.tally import Event, Tally
from kvserving_connector.store.transfers import Finished, Item, Transfers
from kvserving_connector.vllm import prober
from kvserving_connector.vllm.identity import namespace_of
from kvserving_connector.vllm.prober import Prober
from kvserving_connector.vllm.series import STORE, STORE_PENDING

DEFAULT_MAX_INFLIGHT = 4096

_FIRST_PAUSE = FIRST_PAUSE
_LATE_SECONDS = LATE_SECONDS


class SharedStoreTier(SecondaryTierManager):  # type: ignore[misc]
    """vLLM's secondary tier on a shared store; see ``__init__`` for the keys of its configuration."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        *,
        urls: Sequence[str],
        load_timeout_s: float = 30.0,
        share_across_versions: bool = False,
        tenant: str | None = None,
        max_bytes: int | None = None,
        max_inflight: int = DEFAULT_MAX_INFLIGHT,
        identity: Mapping[str, str] | None = None,
        locality: str | None = None,
        **later: Any,
    ) -> None:
        """Take the entry of ``secondary_tiers`` that the operator renders.

        ``urls``: one ``file://`` directory, or Valkey servers that share the keys. ``load_timeout_s``: seconds after
        which a load is a miss (stores likewise). ``max_bytes``: bound of a directory. ``max_inflight``: chunks that may
        be loading; beyond it look-ups are misses. ``identity``: facts about the model (``identity.store_identity``).
        User, password and certificate authority come from ``KVSERVING_STORE_*``. Arguments that later vLLM versions
        pass go to the base class where it takes them. Raises ValueError naming the key for a wrong value.
        """
        if not load_timeout_s > 0:
            raise ValueError(f"load_timeout_s: {load_timeout_s} must be a number of seconds above 0, such as 30")
        if max_inflight < 1:
            raise ValueError(f"max_inflight: {max_inflight} must be at least 1 chunk")
        known = inspect.signature(SecondaryTierManager.__init__).parameters
        passed = {name: later.pop(name) for name in list(later) if name in known}
        if later:
            logger.warning("KVServing: the store tier has no settings %s; they do nothing", ", ".join(sorted(later)))
        super().__init__(offloading_spec, primary_kv_view, tier_type, **passed)
        self.locality = Locality(locality) if locality is not None else None
        slots = np.asarray(primary_kv_view).view(np.uint8).reshape(len(primary_kv_view), -1)
        self._chunk_bytes = slots.shape[1]
        self._timeout = float(load_timeout_s)
        self._max_loads = max_inflight
        # Chunks of open stores are pinned in host memory, where loads need room as well.
        self._max_stores = max(1, len(slots) // 2)
        self._tenant = tenant or ""
        self._identity = dict(identity) if identity is not None else _fallback_identity(share_across_versions)
        self._engine = "" if share_across_versions else minor(vllm.__version__)
        self._known: tuple[Namespace, bytes] | None = None
        self._tally = Tally()
        self._gate = Gate(self._timeout, first_pause=_FIRST_PAUSE, late_seconds=_LATE_SECONDS)
        self._pauses = self._gate.pauses
        # By request: a prompt's later chunks are asked for and, once an earlier one is absent, their answer is not.
        self._probing: dict[str, dict[bytes, float]] = {}
        self._partial: set[int] = set()
        client = open_store(urls, max_bytes, Credentials.from_environment())
        self._client: StoreClient = client
        source = getattr(type(self), "cache_hit_source", None)
        if source is not None and not kind_of(urls).folder:
            # By its medium vLLM takes the tier for a disk; a server's hits have no name of their own (0.32 and newer).
            self.cache_hit_source = type(source)("external_unspecified")
        announcement = Announcement(client, lambda: self._namespace[0])
        self._transfers = Transfers(client, slots, self._tally, before_store=announcement.tell)
        self._lookup_manager = Prober(tier_type, client, self._tally, lambda: self._namespace[1], announcement.tell)

    @property
    def _namespace(self) -> tuple[Namespace, bytes]:
        """Return everything that this engine's objects depend on, and its digest.

        Known from the first request on: vLLM settles the root of its block hashes after it has made the tiers.
        """
        if self._known is None:
            root = getattr(kv_cache_utils, "NONE_HASH", None)
            namespace = namespace_of(
                self._offloading_spec.config,
                chunk_bytes=self._chunk_bytes,
                hash_root=bytes(root).hex() if root is not None else "",
                tenant=self._tenant,
                engine=self._engine,
                identity=self._identity,
            )
            self._known = namespace, namespace.digest()
        return self._known

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        """Say whether the store has the chunk; RETRY while it is asked, for ``PROBE_SECONDS`` of the prober at most.

        After a look-up or load without an answer in time the store is not asked for a while: MISS at once.
        """
        now = time.monotonic()
        probing = self._probing.setdefault(req_context.req_id, {})
        if (reason := self._closed_for(key, now)) is not None:
            self._tally.count(Event.MISS, reason)
            probing.pop(key, None)
            return LookupResult.MISS
        found = self._lookup_manager.lookup(key, req_context)
        if found is not None:
            probing.pop(key, None)
            return LookupResult.HIT if found else LookupResult.MISS
        if now - probing.setdefault(key, now) < prober.PROBE_SECONDS:
            return LookupResult.RETRY
        self._tally.count(Event.TIMEOUT, "lookup")
        self._tally.count(Event.MISS, Reason.TIMEOUT)
        self._gate.given_up([key], probing.pop(key), now)
        return LookupResult.MISS

    def submit_load(self, job_metadata: Any) -> None:
        """Start to read the chunks into their slots."""
        self._submit(job_metadata, load=True)

    def submit_store(self, job_metadata: Any) -> None:
        """Start to write the chunks, the first of them that the bound on open stores leaves room for."""
        self._submit(job_metadata, load=False, room=self._max_stores - self._transfers.pending(load=False))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the jobs that ended, those that were given up at their deadline among them."""
        return [self._result(finished) for finished in self._transfers.finished()]

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        """Ask for nothing special: chunks are stored as they come."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Forget what the request looked up, and since when."""
        self._probing.pop(req_context.req_id, None)
        self._lookup_manager.cleanup(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        """Send the look-ups of this step to the prober."""
        self._lookup_manager.flush()
        for asked, silent in self._lookup_manager.answers():
            self._gate.looked_up(asked, time.monotonic(), silent=silent)

    def drain_jobs(self) -> None:
        """Wait until all jobs have ended, at the latest at their deadlines; afterwards nothing touches host memory."""
        self._transfers.drain()

    def shutdown(self) -> None:
        """Give up what is open and release threads, connections and host memory."""
        self._transfers.close()
        self._client.close()
        self._lookup_manager.shutdown()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """Return the tier's metrics, which vLLM exposes from the API server."""
        counters = {
            series.name: OffloadingCounterMetadata(documentation=series.text, labelnames=series.labelnames)
            for series in STORE.values()
        }
        pending = OffloadingGaugeMetadata(documentation=STORE_PENDING.text, labelnames=STORE_PENDING.labelnames)
        return {**counters, STORE_PENDING.name: pending}

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return what was counted since the last call and the chunks under way."""
        stats = OffloadingConnectorStats()
        for (event, label), number in self._tally.take().items():
            stats.increase_counter(STORE[event].name, number, (label,) if label else ())
        for operation, load in (("load", True), ("store", False)):
            stats.set_gauge(STORE_PENDING.name, self._transfers.pending(load=load), (operation,))
        return stats

    def _closed_for(self, key: bytes, now: float) -> Reason | None:
        """Return why the store is not asked for the chunk."""
        if (reason := self._gate.closed_for(key, now)) is not None:
            return reason
        return Reason.BUSY if self._transfers.pending(load=True) >= self._max_loads else None

    def _submit(self, job: Any, *, load: bool, room: int | None = None) -> None:
        chunks = getattr(job, "chunk_ids", None)
        if chunks is None:
            chunks = job.block_ids  # vLLM 0.29
        items = [Item(bytes(key), int(chunk)) for key, chunk in zip(job.keys, chunks, strict=True)]
        if room is not None and len(items) > room:
            self._tally.count(Event.SKIP, Reason.BUSY, len(items) - room)
            self._partial.add(job.job_id)
            items = items[: max(0, room)]
        deadline = getattr(job, "submit_time", time.monotonic()) + self._timeout
        self._transfers.submit(job.job_id, items, self._namespace[1], deadline, load=load)

    def _result(self, finished: Finished) -> JobResult:
        success = not finished.failed and finished.job not in self._partial
        self._partial.discard(finished.job)
        if finished.load and finished.failed:
            self._lookup_manager.mark_miss(finished.failed)
        self._gate.ended(finished, time.monotonic())
        result = {
            "job_id": finished.job,
            "success": success,
            "successful_keys": finished.done if finished.load and not success and finished.done else None,
            "transfer_time": finished.seconds,
        }
        if "transfer_bytes" in JobResult.__dataclass_fields__:
            result["transfer_bytes"] = finished.bytes
        return JobResult(**result)


def _fallback_identity(share_across_versions: bool) -> dict[str, str]:
    """Return what the environment says where the connector gave no identity.

    The service's revision names the model and its revision, but the engine's image as well: it would keep versions
    apart that are to share.
    """
    revision = os.environ.get("KVSERVING_REVISION", "")
    if revision and not share_across_versions:
        return {"service_revision": revision}
    logger.warning(
        "KVServing: the store tier was given no identity, so that models are told apart by name only. "
        "Use TieredOffloadConnector, or give every model a tenant of its own."
    )
    return {}
