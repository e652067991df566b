"""What a rank can have of a prompt: what L1 holds is kept, what L2 has is read into L1."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from kvserving_connector.core.chunk_hashes import part_key
from kvserving_connector.core.planner import HybridOffloadPlanner
from kvserving_connector.core.reports import ReadyReport
from kvserving_connector.core.slots import SlotPool
from kvserving_connector.store.rank_store import RankStore
from kvserving_connector.store.transfers import Finished, Item
from kvserving_connector.vllm.worker_cache.messages import Probe

# Steps in which evictions may make room for what is read.
ROOM_STEPS = 4
_INDEX_BYTES = 2


@dataclass
class _Open:
    """A probe under way. ``kept`` are parts that are pinned for it, ``awaited`` those that are being written."""

    probe: Probe
    kept: set[bytes] = field(default_factory=set)
    wanted: list[tuple[bytes, int]] = field(default_factory=list)
    awaited: set[bytes] = field(default_factory=set)
    steps: int = 0
    looking: bool = False
    ended: bool = False


class Probes:
    """The probes of one rank. ``writing`` are the parts that are being written, by anyone, and cannot be read yet."""

    def __init__(self, planner: HybridOffloadPlanner, pool: SlotPool, store: RankStore, writing: set[bytes]) -> None:
        self._planner = planner
        self._pool = pool
        self._store = store
        self._writing = writing
        self._open: dict[Hashable, _Open] = {}
        self._jobs = itertools.count(1)
        self._reads: dict[int, list[tuple[bytes, int]]] = {}
        self._ready: dict[int, ReadyReport] = {}

    def begin(self, probe: Probe) -> None:
        """Keep what L1 holds of the prompt, and look up the rest."""
        opened = self._open[probe.number] = _Open(probe)
        missing = []
        for span, group in self._candidates(probe):
            key = part_key(probe.keys[span], group)
            if self._pool.revive(key):
                self._keep(opened, key)
            elif key in self._writing:
                opened.awaited.add(key)
            else:
                missing.append(key)
        if missing:
            opened.looking = True
            self._store.look_up(probe.number, [object_key(key, 0) for key in missing])
            opened.wanted = [(key, 0) for key in missing]
        self._conclude(opened)

    def release(self, number: int) -> None:
        """Let go of what is kept for the probe; what is being read for it goes on into L1."""
        opened = self._open.pop(number, None)
        self._ready.pop(number, None)
        if opened is None:
            return
        self._store.forget(number)
        for key in opened.kept:
            self._pool.unpin(key)

    def step(self) -> None:
        """Take answers of the store, and go on with what waited for room or for others' writing."""
        for number, found in self._store.found():
            opened = self._open.get(number)
            if opened is not None:
                self._looked_up(opened, found)
        for opened in list(self._open.values()):
            if not opened.ended:
                self._read(opened)
                self._conclude(opened)

    def ended(self, finished: Finished) -> None:
        """Take the end of a read: parts that came whole are readable, others are forgotten."""
        done = set(finished.done)
        for key, count in self._reads.pop(finished.job):
            self._writing.discard(key)
            if all(object_key(key, index) in done for index in range(count)):
                self._pool.commit(key)
            else:
                self._pool.discard(key)

    def take(self) -> dict[int, ReadyReport]:
        """Return the probes that ended since the last call."""
        ready, self._ready = self._ready, {}
        return ready

    def _candidates(self, probe: Probe) -> Iterator[tuple[int, int]]:
        spans = min(self._planner.spans(self._planner.limit(probe.num_tokens)), len(probe.keys))
        for span in range(self._planner.spans(probe.local_tokens), spans):
            for group in range(len(self._planner.groups)):
                yield span, group

    def _looked_up(self, opened: _Open, found: tuple[bool, ...]) -> None:
        """Ask for the parts that the longest prefix needs of those that the store has."""
        opened.looking = False
        has = {key for (key, _), there in zip(opened.wanted, found, strict=True) if there}
        opened.wanted = []
        probe, planner = opened.probe, self._planner
        there = has | opened.kept | opened.awaited
        prefix = planner.prefix_tokens(
            lambda group, span: span < len(probe.keys) and part_key(probe.keys[span], group) in there,
            probe.num_tokens,
            probe.local_tokens,
        )
        for span, group in self._candidates(probe):
            key = part_key(probe.keys[span], group)
            if key in has and span in planner.needed(group, prefix):
                opened.wanted.append((key, planner.blocks_per_part(group)))

    def _read(self, opened: _Open) -> None:
        """Start to read what there is room for; after ``ROOM_STEPS`` do without the rest."""
        if opened.looking or not opened.wanted:
            return
        items: list[Item] = []
        parts: list[tuple[bytes, int]] = []
        left: list[tuple[bytes, int]] = []
        opened.steps += 1
        again = opened.steps < ROOM_STEPS
        for key, count in opened.wanted:
            if self._pool.revive(key):
                self._keep(opened, key)
            elif key in self._writing:
                opened.awaited.add(key)
            elif (slots := self._pool.reserve(key, count, again=again)) is None:
                left.append((key, count))
            else:
                self._writing.add(key)
                self._keep(opened, key)
                opened.awaited.add(key)
                parts.append((key, count))
                items += [Item(object_key(key, index), slot) for index, slot in enumerate(slots)]
        opened.wanted = left if again else []
        if items:
            job = next(self._jobs)
            self._reads[job] = parts
            self._store.load(job, items)

    def _conclude(self, opened: _Open) -> None:
        """Report what there is once nothing is awaited, and let go of what the prefix does not need."""
        for key in [key for key in opened.awaited if key not in self._writing]:
            opened.awaited.discard(key)
            if key not in opened.kept and self._pool.revive(key):
                self._keep(opened, key)
        if opened.looking or opened.wanted or opened.awaited or opened.ended:
            return
        opened.ended = True
        probe, planner = opened.probe, self._planner
        prefix = planner.prefix_tokens(
            lambda group, span: span < len(probe.keys) and self._has(opened, part_key(probe.keys[span], group)),
            probe.num_tokens,
            probe.local_tokens,
        )
        needed = {
            part_key(probe.keys[span], group)
            for group in range(len(planner.groups))
            for span in planner.needed(group, prefix)
        }
        for key in opened.kept - needed:
            self._pool.unpin(key)
        opened.kept &= needed
        self._ready[probe.number] = ReadyReport(prefix, prefix)

    def _has(self, opened: _Open, key: bytes) -> bool:
        return key in opened.kept and self._pool.get(key) is not None

    def _keep(self, opened: _Open, key: bytes) -> None:
        if key not in opened.kept:
            self._pool.pin(key)
            opened.kept.add(key)


def object_key(key: bytes, index: int) -> bytes:
    """Return the key of one block of a part in L2."""
    return key + index.to_bytes(_INDEX_BYTES, "big")
