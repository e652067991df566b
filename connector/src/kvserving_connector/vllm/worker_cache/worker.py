"""The worker's half: one rank's L1, the copies to and from it, and L2 behind it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvserving_connector.compat import require
from kvserving_connector.core.ranges import normal
from kvserving_connector.core.reports import SaveReport, WorkerReport
from kvserving_connector.core.slots import SPARE_SHARE, SlotPool
from kvserving_connector.core.tier_settings import refuse
from kvserving_connector.core.worker_settings import WorkerCacheSettings
from kvserving_connector.settings import logger
from kvserving_connector.store.rank_store import RankStore
from kvserving_connector.store.tally import Tally
from kvserving_connector.store.transfers import Item
from kvserving_connector.vllm.identity import store_identity
from kvserving_connector.vllm.series import STORE_PENDING
from kvserving_connector.vllm.worker_cache import stats as names
from kvserving_connector.vllm.worker_cache.copies import Copy, CopyEngine, canonical
from kvserving_connector.vllm.worker_cache.geometry import Geometry
from kvserving_connector.vllm.worker_cache.l2 import open_rank_store
from kvserving_connector.vllm.worker_cache.loading import range_of
from kvserving_connector.vllm.worker_cache.messages import Load, Save, SaveSpan, WorkerCacheMetadata
from kvserving_connector.vllm.worker_cache.probes import ROOM_STEPS, Probes, object_key

# Parts that are written to L2 in one job, and stay in L1 until all of them are.
_STORE_PARTS = 16


@dataclass
class _Save:
    """A save under way: the spans that still need room, those that found some, and the parts written for them."""

    save: Save
    waiting: list[SaveSpan]
    steps: int = 0
    tried: int = -1
    copying: int = 0
    placed: list[SaveSpan] = field(default_factory=list)
    written: set[bytes] = field(default_factory=set)


@dataclass
class _Copying:
    """One job of the copy engine that saves: the parts that it writes."""

    save: _Save
    keys: list[bytes]


@dataclass
class _Loading:
    load: Load
    keys: tuple[bytes, ...]


class WorkerHalf:
    """One per rank, in the thread that runs the model."""

    def __init__(
        self, vllm_config: Any, kv_cache_config: Any, geometry: Geometry, settings: WorkerCacheSettings
    ) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._geometry = geometry
        self._settings = settings
        self.rank = int(geometry.config.parallel.rank)
        self.pool = SlotPool(1)
        self._copies: CopyEngine | None = None
        self._store: RankStore | None = None
        self._probes: Probes | None = None
        self._tally = Tally()
        self._writing: set[bytes] = set()
        self._jobs = itertools.count(1)
        self._saves: dict[int, _Save] = {}
        self._copying: dict[int, _Copying] = {}
        self._loads: dict[int, _Loading] = {}
        self._storing: dict[int, list[bytes]] = {}
        self._ended: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._failed_requests: set[str] = set()
        self._report = WorkerReport(0, 0)
        self._step = self._saved_step = 0
        self._hash_root = ""
        self._told: dict[tuple[str, ...], int] = {}

    # Life

    def register(self, kv_caches: dict[str, Any]) -> None:
        """Make L1 beside the engine's KV cache. Raises ValueError when it would not hold one span."""
        config = self._vllm_config
        copies = CopyEngine(
            canonical(config, self._kv_cache_config, kv_caches),
            self.l1_bytes(),
            f"{config.kv_transfer_config.engine_id}_w{self.rank}",
            config.device_config.device_type,
        )
        self._copies = copies
        planner = self._geometry.planner
        span_slots = sum(planner.blocks_per_part(group) for group in range(len(planner.groups)))
        if copies.slots - copies.slots // SPARE_SHARE < span_slots:
            way_out = (
                f"set cache.l1.size to several times {span_slots * copies.slot_bytes * self._geometry.local_ranks}"
            )
            reason = f"{planner.span_tokens} tokens take {span_slots} blocks of {copies.slot_bytes} bytes on each rank"
            raise refuse("cpu_bytes_to_use", self._settings.cpu_bytes, reason, way_out)
        self.pool = SlotPool(copies.slots)
        if self._settings.store is not None:
            self._store = open_rank_store(
                self._settings,
                copies,
                self._tally,
                config=self._geometry.config,
                identity=self._settings.store.get("identity") or store_identity(config),
                hash_root=lambda: self._hash_root,
                rank=self.rank,
            )
            self._probes = Probes(self._geometry.planner, self.pool, self._store, self._writing)
        logger.info(
            "KVServing worker cache: rank %d holds %d blocks of %d bytes in host memory",
            self.rank,
            copies.slots,
            copies.slot_bytes,
        )

    def l1_bytes(self) -> int:
        """Return this rank's share of L1 on its host."""
        return self._settings.cpu_bytes // self._geometry.local_ranks

    def close(self) -> None:
        """Finish the copies under way, give up what moves to and from L2, and let go of all memory."""
        if self._store is not None:
            self._store.close()
        if self._copies is not None:
            self._copies.close()

    # Steps

    def begin(self, message: WorkerCacheMetadata) -> None:
        """Do what the scheduler asks for, but for saves, which start after the step; once per step."""
        if message.step == self._step:
            return
        self._step, self._hash_root = message.step, message.hash_root or self._hash_root
        if message.reset:
            self.pool.clear()
            for opened in self._saves.values():
                opened.waiting = []
        # In a step without requests ``poll`` starts them: before 0.31 vLLM does not call ``save`` there.
        self._saves |= {save.number: _Save(save, list(save.spans)) for save in message.saves if not save.request_id}
        # Before victims are freed: a load was promised from what they still hold.
        for load in message.loads:
            self._load(load)
        self.pool.applied(message.applied)
        self.pool.touch(message.used)
        if self._probes is not None:
            for number in message.releases:
                self._probes.release(number)
            for probe in message.probes:
                self._probes.begin(probe)

    def save(self, message: WorkerCacheMetadata) -> None:
        """Start the step's saves and those that waited for room; once per step."""
        if message.step == self._saved_step:
            return
        self._saved_step = message.step
        self._saves |= {save.number: _Save(save, list(save.spans)) for save in message.saves if save.request_id}
        for opened in list(self._saves.values()):
            self._place(opened)

    def poll(self) -> set[str]:
        """Return the requests whose loads ended since the last call, and take note of all else that ended.

        Saves that wait for room, or that a reset left with nothing to wait for, go on here too: before 0.31 vLLM does
        not call ``save`` in a step without requests, and the steps that wait for these saves may all be such.
        """
        for opened in list(self._saves.values()):
            self._place(opened)
        for result in self._engine().finished():
            loading = self._loads.pop(result.job_id, None)
            if loading is not None:
                if not result.success:
                    self._fail(loading.load, range(len(loading.load)))
                self._end_load(loading)
            else:
                self._end_copy(self._copying.pop(result.job_id), result.success)
        if self._store is not None and self._probes is not None:
            for finished in self._store.finished():
                if finished.load:
                    self._probes.ended(finished)
                else:
                    for key in self._storing.pop(finished.job):
                        self.pool.unpin(key)
            self._probes.step()
        ended, self._ended = self._ended, set()
        return ended

    def failed_blocks(self) -> set[int]:
        """Return the blocks that were not loaded since the last call."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def failed_requests(self) -> set[str]:
        """Return the requests whose loads failed since the last call, of models with several cache groups."""
        failed, self._failed_requests = self._failed_requests, set()
        return failed

    def report(self) -> WorkerReport:
        """Return the report of this step; call it after everything else of the step."""
        report, self._report = self._report, WorkerReport(0, 0)
        report.step, report.capacity = self._step, self.pool.capacity
        if self._probes is not None:
            report.ready = self._probes.take()
        report.lost = set(self.pool.announce(self._step))
        return report

    def drain_stats(self) -> names.WorkerCacheStats:
        """Return what was counted since the last call, and levels that have changed."""
        stats = names.WorkerCacheStats()
        stats.add_store(self._tally.take())
        for (name, *labels), value in self._levels().items():
            if self._told.get((name, *labels)) != value:
                self._told[name, *labels] = value
                stats.level(name, value, tuple(labels), rank=self.rank)
        return stats

    def _levels(self) -> dict[tuple[str, ...], int]:
        levels: dict[tuple[str, ...], int] = {}
        if self._copies is not None:
            levels[(names.USED,)] = self.pool.used * self._copies.slot_bytes
            levels[(names.CAPACITY,)] = self.pool.capacity * self._copies.slot_bytes
        if self._store is not None:
            for operation, load in (("load", True), ("store", False)):
                levels[STORE_PENDING.name, operation] = self._store.pending(load=load)
        return levels

    # Loads

    def readable(self, key: bytes) -> tuple[int, ...] | None:
        """Return the slots of a part that a load needs, None when it cannot be had."""
        return self.pool.get(key)

    def _load(self, load: Load) -> None:
        slots = [self.readable(key) for key in load.keys]
        missing = [index for index, part in enumerate(load.parts) if slots[part] is None]
        if missing:
            self._fail(load, missing)
        columns = zip(load.groups, load.block_ids, load.parts, load.indices, strict=True)
        copies = [
            Copy(group, block_id, found[index])
            for group, block_id, part, index in columns
            if (found := slots[part]) is not None
        ]
        readable = tuple(key for key, found in zip(load.keys, slots, strict=True) if found is not None)
        for key in readable:
            self.pool.pin(key)
        loading = _Loading(load, readable)
        if not copies:
            self._end_load(loading)
            return
        job = next(self._jobs)
        self._loads[job] = loading
        self._engine().load(job, copies)

    def _end_load(self, loading: _Loading) -> None:
        for key in loading.keys:
            self.pool.unpin(key)
        self._ended.add(loading.load.request_id)

    def _fail(self, load: Load, indices: Sequence[int]) -> None:
        """Report blocks that were not loaded, and forget the parts: they are not what the scheduler takes them for.

        Raises RuntimeError where vLLM has no way to be told.
        """
        logger.warning(
            "KVServing worker cache: rank %d could not load %d of %d blocks of request %s",
            self.rank,
            len(indices),
            len(load),
            load.request_id,
        )
        if self._geometry.cache_groups == 1:
            self._failed_blocks.update(load.block_ids[index] for index in indices)
        elif require().transfer_results:
            self._failed_requests.add(load.request_id)
        else:
            raise RuntimeError(
                f"{len(indices)} blocks of a model with several cache groups could not be loaded, and this vLLM cannot "
                "be told; use vLLM 0.30 or newer"
            )
        for key in {load.keys[load.parts[index]] for index in indices} - self._writing:
            self.pool.discard(key)
        ranges = [*self._report.failed.get(load.request_id, ())]
        ranges += [range_of(self._geometry.planner, load, index) for index in indices]
        self._report.failed[load.request_id] = normal(ranges)

    # Saves

    def _place(self, opened: _Save) -> None:
        """Copy the spans that there is room for, once per step; after ``ROOM_STEPS`` do without the rest."""
        if opened.tried == self._step:
            return
        opened.tried = self._step
        copies: list[Copy] = []
        keys: list[bytes] = []
        left = []
        opened.steps += 1
        again = opened.steps < ROOM_STEPS
        for span in opened.waiting:
            found = self._room(span, again)
            if found is None:
                left.append(span)
                continue
            opened.placed.append(span)
            keys += found
            for part in span.parts:  # until the report, so that a save does not push out its own beginning
                self.pool.pin(part.key)
            copies += [
                Copy(part.group, block, slot)
                for part in span.parts
                if part.key in found
                for block, slot in zip(part.blocks, found[part.key], strict=True)
            ]
        opened.waiting = left if again else []
        if copies:
            job = next(self._jobs)
            self._copying[job] = _Copying(opened, keys)
            opened.copying += 1
            self._engine().save(job, copies)
        self._end_save(opened)

    def _room(self, span: SaveSpan, again: bool) -> dict[bytes, tuple[int, ...]] | None:
        """Return slots for the parts that are not there yet; None when there are too few now, or others write one."""
        slots: dict[bytes, tuple[int, ...]] = {}
        for part in span.parts:
            if self.pool.revive(part.key):
                continue
            writing = part.key in self._writing
            found = None if writing else self.pool.reserve(part.key, len(part.blocks), again=again)
            if found is None:
                for key in slots:
                    self.pool.discard(key)
                return None
            slots[part.key] = found
        self._writing.update(slots)
        return slots

    def _end_copy(self, copying: _Copying, success: bool) -> None:
        written = []
        for key in copying.keys:
            self._writing.discard(key)
            if not success:
                self.pool.discard(key)
            elif self.pool.commit(key):
                written.append(key)
        copying.save.written.update(written)
        copying.save.copying -= 1
        self._store_later(written)
        self._end_save(copying.save)

    def _end_save(self, opened: _Save) -> None:
        """Report the save once all of it has ended: what is still there of it, with its beginning used last."""
        if opened.waiting or opened.copying:
            return
        del self._saves[opened.save.number]
        held = [span for span in reversed(opened.placed) if all(self.pool.revive(part.key) for part in span.parts)]
        for part in (part for span in opened.placed for part in span.parts):
            self.pool.unpin(part.key)
        present = [span for span in held if not any(part.key in opened.written for part in span.parts)]
        self._report.saves[opened.save.number] = SaveReport(
            normal(span.range for span in held), normal(span.range for span in present)
        )

    # L2

    def _store_later(self, keys: list[bytes]) -> None:
        """Start to write parts to L2; they are kept meanwhile. What it has no room for is not written."""
        if self._store is None or not keys:
            return
        for first in range(0, len(keys), _STORE_PARTS):
            batch = keys[first : first + _STORE_PARTS]
            items = [
                Item(object_key(key, index), slot)
                for key in batch
                for index, slot in enumerate(self.pool.get(key) or ())
            ]
            job = next(self._jobs)
            if self._store.store(job, items):
                for key in batch:
                    self.pool.pin(key)
                self._storing[job] = batch

    def _engine(self) -> CopyEngine:
        assert self._copies is not None, "vLLM registers its KV caches before the first step"
        return self._copies
