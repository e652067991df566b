"""The scheduler's half: what is promised, from what workers reported or found, and what is counted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm.v1.core import kv_cache_utils

from kvserving_connector.core.chunk_hashes import HashBook, part_key
from kvserving_connector.core.loads import LoadLedger, Tier
from kvserving_connector.core.ranges import Range, union
from kvserving_connector.core.reports import WorkerReport
from kvserving_connector.core.tracker import PrefixTracker
from kvserving_connector.core.worker_settings import WorkerCacheSettings
from kvserving_connector.settings import logger
from kvserving_connector.vllm.context import SchedulerContext
from kvserving_connector.vllm.worker_cache import stats as names
from kvserving_connector.vllm.worker_cache.geometry import Geometry
from kvserving_connector.vllm.worker_cache.loading import keys_within, plan_load
from kvserving_connector.vllm.worker_cache.lookups import LookUp, LookUps
from kvserving_connector.vllm.worker_cache.messages import Load, WorkerCacheMetadata
from kvserving_connector.vllm.worker_cache.saves import Saves


@dataclass
class _Loading:
    """A load under way: its blocks, which are held meanwhile, and what ranks could not load of them."""

    load: Load
    tier: Tier
    local: int
    prefix: int
    failed: tuple[Range, ...] = ()


class SchedulerHalf:
    """One per engine, in the scheduler's thread."""

    def __init__(self, geometry: Geometry, settings: WorkerCacheSettings, max_batch_tokens: int) -> None:
        self._planner = geometry.planner
        self._group_ids = geometry.group_ids
        self._by_block = geometry.cache_groups == 1
        self._settings = settings
        self.tracker = PrefixTracker()
        self._hashes = HashBook(self._planner.hashes_per_span)
        self.ledger = LoadLedger(
            loads=settings.loads,
            has_l2=settings.store is not None,
            timeout_s=settings.load_timeout_s,
            clock=time.monotonic,
        )
        self._saves = Saves(
            self._planner, geometry.group_ids, geometry.ranks, settings, self.tracker, self._hashes, max_batch_tokens
        )
        self._lookups = LookUps(
            self._planner, geometry.ranks, self.tracker, self._hashes, self.ledger, settings.load_timeout_s
        )
        self._context: SchedulerContext | None = None
        self._loading: dict[str, _Loading] = {}
        self._requests: dict[str, Any] = {}
        self._failing: set[str] = set()
        self._step = 0
        self._applied = 0
        self._told = -1
        self._next = WorkerCacheMetadata(0, 0)
        self.stats = names.WorkerCacheStats()
        for warning in self._planner.warnings:
            logger.warning("KVServing worker cache: %s", warning)

    @property
    def busy(self) -> bool:
        """Whether the engine has to step even without requests: saves are awaited, or are still to begin."""
        return self.holds or self._saves.waiting

    @property
    def holds(self) -> bool:
        """Whether blocks are held for saves."""
        return len(self._saves) > 0

    def bind(self, context: SchedulerContext) -> None:
        """Take the scheduler's blocks."""
        self._context = context

    # Requests

    def arrived(self, request: Any) -> None:
        """A request was added."""
        self._requests[request.request_id] = request

    def request(self, request_id: str) -> Any | None:
        """Return the request, None for one that has ended."""
        return self._requests.get(request_id)

    def from_host(self, request_id: str) -> bool:
        """Whether what the request loads was promised from L1 alone."""
        loading = self._loading.get(request_id)
        return loading is not None and loading.tier is Tier.L1

    def matched(self, request: Any, local: int) -> tuple[int | None, bool]:
        """Answer vLLM's ``get_num_new_matched_tokens``; without side effects but for probes and their waits."""
        request_id = request.request_id
        found = self._lookups.of(request, local)
        # What failed once may fail each time, as a store may always have what it does not deliver.
        skips = request_id in self._failing or bool(getattr(request, "skip_reading_prefix_cache", False))
        if skips or any(local % self._planner.groups[group].block_tokens for group in range(len(self._group_ids))):
            return 0, False
        keys = self._hashes.of(request_id).keys(request.block_hashes)
        new = request.num_tokens - local
        prefix = self._planner.prefix_tokens(
            lambda group, span: span < len(keys) and self.tracker.holds(part_key(keys[span], group)),
            request.num_tokens,
            local,
        )
        tier = Tier.L1
        if self._settings.store is not None:
            ready = self._lookups.ready(found, keys, prefix, new)
            if ready is None:
                return None, False
            if ready > local and ready >= prefix:
                prefix = ready
                tier = Tier.L2 if ready > found.tracked else Tier.L1
        if prefix <= local or not self.ledger.takes(request_id, prefix - local, new):
            return 0, False
        found.promised, found.tier = prefix - local, tier
        return found.promised, True

    def allocated(self, request: Any, block_ids: tuple[list[int], ...], external: int) -> None:
        """Blocks were allocated; ``external`` tokens of them are loaded by this connector, 0 for none.

        Raises RuntimeError when that is not what was promised: loading another number would leave blocks unfilled.
        """
        request_id = request.request_id
        found = self._lookups.take(request_id)
        if found is None:
            return
        self.ledger.allocated(request_id, external, found.tier is Tier.L2)
        prefix = found.local + external
        if external == 0:
            self._lookups.release(request_id)
        elif external != found.promised:
            raise RuntimeError(
                f"{external} tokens of request {request_id} are to be loaded and {found.promised} were promised"
            )
        else:
            self._start_load(request_id, found, prefix, block_ids)
        self._saves.started(request, prefix)
        self._next.used += self._held_before(request, found.local)

    def finished(self, request: Any) -> None:
        """The request has ended. What moves for it still moves: the blocks are held."""
        request_id = request.request_id
        self.ledger.finished(request_id)
        self._requests.pop(request_id, None)
        self._failing.discard(request_id)
        self._lookups.take(request_id)
        self._next.used += self._saves.ended(request_id, self._bound())
        self._hashes.drop(request_id)
        if request_id not in self._loading:
            self._lookups.release(request_id)

    # Steps

    def metadata(self, output: Any) -> WorkerCacheMetadata:
        """Return what every rank is told with this step."""
        context = self._bound()
        self._step += 1
        message, self._next = self._next, WorkerCacheMetadata(0, 0)
        message.step, message.applied = self._step, self._applied
        message.probes, message.releases = self._lookups.messages()
        message.saves, used = self._saves.collect(output, context)
        message.used += used
        self.tracker.touch(message.used)
        if self._settings.store is not None:
            # vLLM settles the root of its hashes after it has made the connector, and in this process only.
            message.hash_root = bytes(getattr(kv_cache_utils, "NONE_HASH", b"") or b"").hex()
        self.ledger.stepped()
        return message

    def reported(self, report: WorkerReport) -> None:
        """Apply one step's report of all ranks that made one."""
        context = self._bound()
        self.tracker.resize(report.capacity)
        for request_id, ranges in report.failed.items():
            self._failed(request_id, ranges)
        for number, ready in report.ready.items():
            self._lookups.answered(number, ready)
        for number, save in report.saves.items():
            self._saves.reported(number, save, context)
        # Last: a rank loses what it reported before, and what others report about now.
        self._lose(report.lost)
        self._applied = report.step

    def received(self, request_ids: Iterable[str]) -> None:
        """Loads have ended on all ranks."""
        for request_id in request_ids:
            done = self._loading.pop(request_id, None)
            if done is None:
                continue
            self.ledger.received(request_id)
            self._bound().free_blocks(done.load.block_ids)
            self._lookups.release(request_id)
            whole = loaded = done.prefix - done.local
            if done.failed:
                if request_id in self._requests:
                    self._failing.add(request_id)
                # What follows a block that was not loaded is computed with it; with several groups all of it is.
                first = done.failed[0][0] * self._planner.hash_block_tokens
                loaded = max(0, first - done.local) if self._by_block else 0
                self._saves.rewind(request_id, done.local + loaded if loaded else 0)
            self._count(names.LOADED, loaded, str(done.tier))
            self._count(names.FAILED, whole - loaded, str(done.tier))

    def reset(self) -> None:
        """Forget the tier and have the ranks forget it."""
        self.tracker.clear()
        self._saves.void()
        self._lookups.reset(but=self._loading)
        self._next.reset = True

    def drain_stats(self) -> names.WorkerCacheStats:
        """Return what was counted since the last call, and levels that have changed."""
        self._count(names.SAVED, self._saves.saved_tokens)
        self._saves.saved_tokens = 0
        drained, self.stats = self.stats, names.WorkerCacheStats()
        tally = self.ledger.drain()
        if tally is not None:
            drained.add_loads(tally, self.ledger.model)
        if len(self.tracker) != self._told:
            self._told = len(self.tracker)
            drained.level(names.TRACKED, self._told)
        return drained

    # Between the two

    def _lose(self, keys: set[bytes]) -> None:
        self._count(names.LOST, self._tokens_of(self.tracker.drop(keys)))
        if keys:
            self._saves.lost(keys)
            self._lookups.lost(keys)

    def _held_before(self, request: Any, local: int) -> list[bytes]:
        """Return what is tracked of the tokens that the engine has itself: used all the same, the beginning last."""
        keys = self._hashes.of(request.request_id).keys(request.block_hashes)[: self._planner.spans(local)]
        parts = [part_key(key, group) for key in reversed(keys) for group in range(len(self._group_ids))]
        return [key for key in parts if self.tracker.holds(key)]

    def _start_load(self, request_id: str, found: LookUp, prefix: int, block_ids: tuple[list[int], ...]) -> None:
        context = self._bound()
        keys = self._hashes.of(request_id).keys(found.request.block_hashes)
        tables = [block_ids[group_id] for group_id in self._group_ids]
        load = plan_load(self._planner, request_id, keys, tables, prefix, found.local)
        if context.null_block_id in load.block_ids:
            raise RuntimeError(
                f"a block of request {request_id} is to be loaded and has no memory: this vLLM places blocks in a way "
                "that WorkerCacheConnector does not know"
            )
        # An aborted or failed request gives its blocks back while ranks may still write to them.
        context.touch(load.block_ids)
        self._loading[request_id] = _Loading(load, found.tier, found.local, prefix)
        self._next.loads.append(load)
        self._next.used += reversed(load.keys)
        self._count(names.PROMISED, prefix - found.local, str(found.tier))

    def _failed(self, request_id: str, ranges: tuple[Range, ...]) -> None:
        loading = self._loading.get(request_id)
        if loading is None:
            return
        loading.failed = union(loading.failed, ranges)
        lost = keys_within(self._planner, loading.load, ranges)
        self._lose(lost)

    def _tokens_of(self, parts: int) -> int:
        return parts * self._planner.span_tokens // len(self._group_ids)

    def _count(self, name: str, value: int, *labels: str) -> None:
        if value:
            self.stats.add(name, value, labels)

    def _bound(self) -> SchedulerContext:
        assert self._context is not None, "vLLM binds the scheduler's blocks before the first request"
        return self._context
