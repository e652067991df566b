"""The scheduler's half: what is promised, from what workers reported or found, and what is counted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core import kv_cache_utils

from kvserving_connector.core.chunk_hashes import HashBook, part_key
from kvserving_connector.core.loads import LoadLedger, Tier
from kvserving_connector.core.planner import GroupKind
from kvserving_connector.core.ranges import Range, union
from kvserving_connector.core.reports import Quorum, ReadyReport, WorkerReport
from kvserving_connector.core.tracker import PrefixTracker
from kvserving_connector.core.worker_settings import WorkerCacheSettings
from kvserving_connector.settings import logger
from kvserving_connector.vllm.context import SchedulerContext
from kvserving_connector.vllm.worker_cache import stats as names
from kvserving_connector.vllm.worker_cache.geometry import Geometry
from kvserving_connector.vllm.worker_cache.loading import keys_within, plan_load
from kvserving_connector.vllm.worker_cache.messages import Load, Probe, WorkerCacheMetadata
from kvserving_connector.vllm.worker_cache.saves import Saves


@dataclass
class _Lookup:
    """What is known of a request before its blocks are allocated. ``ready`` is None until all ranks have answered.

    ``asked_from`` are the tokens that the engine held when they were asked, ``tracked`` those that were tracked.
    """

    request: Any
    local: int = 0
    promised: int = 0
    tier: Tier = Tier.L1
    probe: int | None = None
    asked_from: int = 0
    tracked: int = 0
    ready: int | None = None
    waits_since: float | None = None
    lost: set[bytes] = field(default_factory=set)


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
        self._all_full = all(group.kind is GroupKind.FULL for group in self._planner.groups)
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
        self._ready: Quorum[ReadyReport] = Quorum(geometry.ranks)
        self._context: SchedulerContext | None = None
        self._lookups: dict[str, _Lookup] = {}
        self._loading: dict[str, _Loading] = {}
        self._requests: dict[str, Any] = {}
        self._failing: set[str] = set()
        self._probes: dict[int, _Lookup] = {}
        self._probed: dict[str, int] = {}
        self._probe = 0
        self._step = 0
        self._applied = 0
        self._told = -1
        self._next = WorkerCacheMetadata(0, 0)
        self.stats = names.WorkerCacheStats()
        for warning in self._planner.warnings:
            logger.warning("KVServing worker cache: %s", warning)

    @property
    def hash_calls(self) -> int:
        """Hashes computed for span keys so far."""
        return self._hashes.calls

    @property
    def busy(self) -> bool:
        """Whether reports about saves are awaited: the engine has to step for them even without requests."""
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
        found = self._lookups.setdefault(request_id, _Lookup(request))
        found.local, found.promised = local, 0
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
            ready = self._asked(found, keys, prefix, new)
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
        found = self._lookups.pop(request_id, None)
        if found is None:
            return
        self.ledger.allocated(request_id, external, found.tier is Tier.L2)
        prefix = found.local + external
        if external == 0:
            self._release(request_id)
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
        self._lookups.pop(request_id, None)
        self._next.used += self._saves.ended(request_id)
        self._hashes.drop(request_id)
        if request_id not in self._loading:
            self._release(request_id)

    # Steps

    def metadata(self, output: Any) -> WorkerCacheMetadata:
        """Return what every rank is told with this step."""
        context = self._bound()
        self._step += 1
        message, self._next = self._next, WorkerCacheMetadata(0, 0)
        message.step, message.applied = self._step, self._applied
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
            self._answered(number, ready)
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
            self._release(request_id)
            whole = loaded = done.prefix - done.local
            if done.failed:
                if request_id in self._requests:
                    self._failing.add(request_id)
                # What follows a block that was not loaded is computed with it; with several groups all of it is.
                first = done.failed[0][0] * self._planner.hash_block_tokens
                loaded = max(0, first - done.local) if len(self._group_ids) == 1 else 0
                self._saves.rewind(request_id, done.local + loaded if loaded else 0)
            self._count(names.LOADED, loaded, str(done.tier))
            self._count(names.FAILED, whole - loaded, str(done.tier))

    def reset(self) -> None:
        """Forget the tier and have the ranks forget it."""
        self.tracker.clear()
        self._saves.void()
        for request_id in list(self._probed):
            if request_id not in self._loading:
                self._release(request_id)
        for found in self._lookups.values():
            found.probe = found.ready = None
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

    def _asked(self, found: _Lookup, keys: Any, prefix: int, new: int) -> int | None:
        """Return the tokens that the ranks have ready, 0 when they are not asked, None while they are awaited."""
        request_id = found.request.request_id
        if found.probe is not None and self._outdated(found, keys):
            self._release(request_id)
            found.probe = found.ready = None
        if found.ready is not None:
            return found.ready
        if found.probe is None:
            enough = prefix >= self._planner.limit(found.request.num_tokens)
            if enough or self.ledger.gave_up(request_id) or not self.ledger.may_ask_outer(request_id, new):
                return 0
            if not self._room_for(found):
                now = time.monotonic()
                found.waits_since = now if found.waits_since is None else found.waits_since
                if now - found.waits_since < self._settings.load_timeout_s:
                    return None
                found.ready = 0
                return 0
            found.asked_from, found.tracked = found.local, prefix
            self._ask(found, keys, found.request.num_tokens)
        if not self.ledger.deferred(request_id):
            return None
        logger.warning("KVServing worker cache: no answer for request %s in time, its prompt is computed", request_id)
        self._release(request_id)
        found.ready = 0
        return 0

    def _outdated(self, found: _Lookup, keys: Any) -> bool:
        """Whether the engine has lost what the ranks were not asked for, or a rank what it had ready.

        No rank evicts what is ready, but it may find a part wrong that another request loads.
        """
        asked_from = self._planner.spans(found.asked_from)
        if self._planner.spans(found.local) < asked_from:
            return True
        if not found.lost or not found.ready:
            return False
        return any(
            part_key(keys[span], group) in found.lost
            for group in range(len(self._group_ids))
            for span in self._planner.needed(group, found.ready)
            if span >= asked_from
        )

    def _ask(self, found: _Lookup, keys: Any, num_tokens: int) -> None:
        """Ask the ranks for a prefix that leaves one of ``num_tokens`` to compute."""
        self._probe += 1
        found.probe = self._probed[found.request.request_id] = self._probe
        found.lost = set()
        self._probes[self._probe] = found
        self._next.probes.append(Probe(self._probe, tuple(keys), num_tokens, found.asked_from))

    def _room_for(self, found: _Lookup) -> bool:
        """Whether the ranks can hold this prompt ready beside those that wait for their blocks already.

        Otherwise the request waits for one of them, as it would for its blocks: what all of them together pin could be
        the whole tier, and nothing would be left to save to.
        """
        span_slots = sum(self._planner.blocks_per_part(group) for group in range(len(self._group_ids)))
        tokens = [each.request.num_tokens for each in (*self._probes.values(), found)]
        slots = span_slots * sum(self._planner.spans(self._planner.limit(number)) for number in tokens)
        return len(tokens) == 1 or slots <= self.tracker.capacity // 2

    def _answered(self, number: int, report: ReadyReport) -> None:
        found = self._probes.get(number)
        merged = self._ready.add(number, report) if found is not None else None
        if found is None or merged is None:
            return
        keys = self._hashes.of(found.request.request_id).keys(found.request.block_hashes)
        if found.asked_from < merged.tokens < merged.most and not self._all_full:
            # A rank with a longer prefix may lack the state or the window that the shorter one needs.
            self._release(found.request.request_id)
            self._ask(found, keys, merged.tokens + 1)
            return
        found.ready = merged.tokens
        # The ranks hold these parts for the request, so they are tracked like saved ones.
        for group in range(len(self._group_ids)):
            for span in self._planner.needed(group, merged.tokens):
                key = part_key(keys[span], group)
                if span >= self._planner.spans(found.asked_from) and key not in found.lost:
                    self.tracker.add(key, self._planner.blocks_per_part(group))

    def _lose(self, keys: set[bytes]) -> None:
        self._count(names.LOST, self._tokens_of(self.tracker.drop(keys)))
        if keys:
            self._saves.lost(keys)
            for number, found in self._probes.items():
                if number in self._ready or found.ready is not None:
                    found.lost |= keys

    def _held_before(self, request: Any, local: int) -> list[bytes]:
        """Return what is tracked of the tokens that the engine has itself: used all the same, the beginning last."""
        keys = self._hashes.of(request.request_id).keys(request.block_hashes)[: self._planner.spans(local)]
        parts = [part_key(key, group) for key in reversed(keys) for group in range(len(self._group_ids))]
        return [key for key in parts if self.tracker.holds(key)]

    def _start_load(self, request_id: str, found: _Lookup, prefix: int, block_ids: tuple[list[int], ...]) -> None:
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

    def _release(self, request_id: str) -> None:
        """Let the ranks let go of what they hold ready for the request."""
        number = self._probed.pop(request_id, None)
        if number is not None:
            del self._probes[number]
            self._ready.drop(number)
            # One that the ranks have not heard of is not asked: they release before they begin.
            unsent = [probe for probe in self._next.probes if probe.number == number]
            if unsent:
                self._next.probes.remove(unsent[0])
            else:
                self._next.releases.append(number)

    def _tokens_of(self, parts: int) -> int:
        return parts * self._planner.span_tokens // len(self._group_ids)

    def _count(self, name: str, value: int, *labels: str) -> None:
        if value:
            self.stats.add(name, value, labels)

    def _bound(self) -> SchedulerContext:
        assert self._context is not None, "vLLM binds the scheduler's blocks before the first request"
        return self._context
