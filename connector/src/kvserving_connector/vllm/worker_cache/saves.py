"""Which blocks are saved to L1 and when, and the references that keep them unchanged meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from kvserving_connector.core.chunk_hashes import HashBook, part_key, span_hash
from kvserving_connector.core.planner import GroupKind, HybridOffloadPlanner
from kvserving_connector.core.ranges import intersection
from kvserving_connector.core.reports import Quorum, SaveReport
from kvserving_connector.core.slots import SPARE_SHARE
from kvserving_connector.core.tracker import PrefixTracker
from kvserving_connector.core.worker_settings import Offload, WorkerCacheSettings
from kvserving_connector.vllm.context import KVCacheBlockView, SchedulerContext
from kvserving_connector.vllm.worker_cache.messages import Save, SavePart, SaveSpan
from kvserving_connector.vllm.worker_cache.unsaved import Unsaved, UnsavedSpans, note

# Blocks that saves may hold, as a share of the engine's: requests need the others.
_SHARE_HELD = 2
# Blocks at the head of the free queue that are looked at with each step.
_MOST_AHEAD = 512
_KEYS_KEPT = 16 * _MOST_AHEAD


@dataclass
class _Progress:
    """How far a request is saved: the next span, from the start of the prompt, and the pieces that it came in.

    ``unsaved`` is what its last step computed and could not hold.
    """

    request: Any
    span: int
    pieces: int = 0
    unsaved: dict[bytes, Unsaved] = field(default_factory=dict)


@dataclass(frozen=True)
class _Open:
    """A save under way: what was asked for, the blocks that are held for it, and parts that a rank lost again.

    ``reuse_first``: the blocks were at the head of the free queue.
    """

    save: Save
    blocks: tuple[int, ...]
    reuse_first: bool
    lost: set[bytes] = field(default_factory=set)


class Saves:
    """The scheduler's side of saving. ``ranks`` report the end of each save; what all of them hold is tracked."""

    def __init__(
        self,
        planner: HybridOffloadPlanner,
        group_ids: Sequence[int],
        ranks: int,
        settings: WorkerCacheSettings,
        tracker: PrefixTracker,
        hashes: HashBook,
        max_batch_tokens: int,
    ) -> None:
        self._planner = planner
        self._group_ids = tuple(group_ids)
        self._settings = settings
        self._tracker = tracker
        self._hashes = hashes
        self._quorum: Quorum[SaveReport] = Quorum(ranks)
        self._numbers = itertools.count(1)
        self._requests: dict[str, _Progress] = {}
        self._open: dict[int, _Open] = {}
        self._saving: dict[bytes, int] = {}
        self._unsaved = UnsavedSpans()
        self._held = 0
        blocks_per_step = -(-max_batch_tokens // min(group.block_tokens for group in planner.groups))
        self._ahead = min(3 * blocks_per_step, _MOST_AHEAD)
        # The same blocks are met step after step.
        self._combine = lru_cache(_KEYS_KEPT)(span_hash(planner.hashes_per_span))
        self.saved_tokens = 0

    def __len__(self) -> int:
        """Return the number of saves under way."""
        return len(self._open)

    @property
    def waiting(self) -> bool:
        """Whether spans of ended requests wait for room."""
        return len(self._unsaved) > 0

    def started(self, request: Any, tokens: int) -> None:
        """Blocks of ``request`` hold ``tokens`` of its prompt before its first step: those are not saved again."""
        spans = self._planner.spans(tokens)
        self._requests[request.request_id] = _Progress(request, spans, pieces=min(spans, 1))

    def rewind(self, request_id: str, tokens: int) -> None:
        """What follows the first ``tokens`` of the prompt is computed after all: a load of it has failed."""
        progress = self._requests.get(request_id)
        if progress is not None:
            progress.span = min(progress.span, self._planner.spans(tokens))
            progress.unsaved = {}

    def ended(self, request_id: str, context: SchedulerContext) -> list[bytes]:
        """The request has no further steps. Saves under way go on: they hold what they read.

        What could not be held is saved later, unless its blocks are needed before that.

        Returns parts to be noted as used, in this order: where a prompt came in pieces its beginning is the oldest, and
        without it the rest is of no use.
        """
        progress = self._requests.pop(request_id, None)
        if progress is None:
            return []
        self._unsaved.add(progress.unsaved, context.num_blocks)
        if progress.pieces < 2:
            return []
        keys = self._hashes.of(request_id).keys(progress.request.block_hashes)[: progress.span]
        return [part_key(key, group) for key in reversed(keys) for group in range(len(self._group_ids))]

    def collect(self, output: Any, context: SchedulerContext) -> tuple[list[Save], list[bytes]]:
        """Return the saves of this step, and the parts that were used and need none."""
        if self._settings.offload is Offload.LAZY:
            # Only while something is computed: an idle engine gives up no block, and has to come to rest where L1
            # holds less than the free queue.
            return self._lazy(context) if output.num_scheduled_tokens else [], []
        if getattr(output, "has_sync_kv_loads", False):
            # What another connector loads for this step may turn out wrong after it; a later step saves these spans.
            return [], []
        saves: list[Save] = []
        used: list[bytes] = []
        states = _boundary_states(output)
        for request_id, scheduled in output.num_scheduled_tokens.items():
            progress = self._requests.get(request_id)
            if progress is None:
                continue
            spans = self._spans(progress, scheduled, output, states.get(request_id, ()), used)
            if not spans:
                continue
            progress.pieces += 1
            if taken := self._within_bounds(progress, spans, context):
                saves.append(self._begin(request_id, taken, context))
        if left := self._of_ended(context):
            saves.append(self._begin("", left, context))
        # A prompt's beginning counts as used last: it is of use without the rest, and not the other way round.
        return saves, used[::-1]

    def reported(self, number: int, report: SaveReport, context: SchedulerContext) -> None:
        """Take a report of one save, and with the last one track what all ranks hold and let go of the blocks."""
        opened = self._open.get(number)
        merged = self._quorum.add(number, report) if opened is not None else None
        if opened is None or merged is None:
            return
        del self._open[number]
        self._held -= len(opened.blocks)
        # Blocks of the queue's head return to it: at its end, others would be given up unsaved before them.
        context.free_blocks(opened.blocks, reuse_first=opened.reuse_first)
        for span in opened.save.spans:
            for part in span.parts:
                self._saving.pop(part.key, None)
            if intersection(merged.held, (span.range,)) != (span.range,):
                continue
            for part in span.parts:
                if part.key not in opened.lost:
                    self._tracker.add(part.key, len(part.blocks))
            if intersection(merged.present, (span.range,)) != (span.range,):
                self.saved_tokens += self._planner.span_tokens

    def lost(self, keys: Iterable[bytes]) -> None:
        """A rank has lost parts, some of which it may have reported as saved already."""
        for key in keys:
            number = self._saving.get(key)
            if number is not None and number in self._quorum:
                self._open[number].lost.add(key)

    def void(self) -> None:
        """Track nothing of what is under way: the cache was reset."""
        self._unsaved.clear()
        for key, number in self._saving.items():
            self._open[number].lost.add(key)

    def _spans(
        self,
        progress: _Progress,
        scheduled: int,
        output: Any,
        states: Sequence[tuple[int, int, int]],
        used: list[bytes],
    ) -> list[tuple[int, SaveSpan]]:
        """Return the spans that are computed with this step and have parts that are not in L1 yet."""
        request, planner = progress.request, self._planner
        # Hashes cover known tokens only, so drafts that may be rejected are left out.
        computed = min(request.num_computed_tokens + scheduled, request.num_tokens)
        if self._settings.prompt_only:
            computed = min(computed, request.num_prompt_tokens)
        stop = min(planner.spans(computed), self._most_spans())
        if stop <= progress.span and not states:
            return []
        keys = self._hashes.of(request.request_id).keys(request.block_hashes)
        stop = min(stop, len(keys))
        by_span: dict[int, list[SavePart]] = {}
        blocks = _block_ids(output, request.request_id) if stop > progress.span else None
        if blocks is not None:
            for span in range(progress.span, stop):
                by_span[span] = self._parts(span, keys[span], blocks, used)
        # States of recurrent layers come by themselves: their blocks cannot be told from the request's table.
        for group_id, block_id, tokens in states:
            span = tokens // planner.span_tokens - 1
            if tokens % planner.span_tokens == 0 and 0 <= span < stop and group_id in self._group_ids:
                group = self._group_ids.index(group_id)
                part = SavePart(part_key(keys[span], group), group, (block_id,))
                by_span.setdefault(span, []).extend(self._new([part], used))
        width = planner.hashes_per_span
        return [(span, SaveSpan((span * width, width), tuple(parts))) for span, parts in sorted(by_span.items())]

    def _most_spans(self) -> int:
        """Return how much of one prompt is saved: more would push out the prompt's own beginning.

        Without a report of the ranks their size is not known, and all of it is.
        """
        capacity, planner = self._tracker.capacity, self._planner
        if not capacity:
            return planner.spans(planner.max_model_len)
        slots = sum(planner.blocks_per_part(group) for group in range(len(self._group_ids)))
        return (capacity - capacity // SPARE_SHARE) // slots

    def _parts(self, span: int, key: bytes, blocks: Sequence[Sequence[int]], used: list[bytes]) -> list[SavePart]:
        parts = []
        for group, settings in enumerate(self._planner.groups):
            if settings.kind is GroupKind.MAMBA:
                continue
            table = blocks[self._group_ids[group]]
            positions = self._planner.part_blocks(group, span)
            ids = tuple(table[position] for position in positions if position < len(table))
            # vLLM puts its null block, number 0, where a window has passed.
            if len(ids) == len(positions) and all(ids):
                parts.append(SavePart(part_key(key, group), group, ids))
        return self._new(parts, used)

    def _new(self, parts: Iterable[SavePart], used: list[bytes]) -> list[SavePart]:
        found = []
        for part in parts:
            if self._tracker.holds(part.key):
                used.append(part.key)
            elif part.key not in self._saving:
                found.append(part)
        return found

    def _within_bounds(
        self, progress: _Progress, spans: list[tuple[int, SaveSpan]], context: SchedulerContext
    ) -> tuple[SaveSpan, ...]:
        """Return the spans that may be held now; later ones wait for the request's next step, or for its end."""
        room = self._room(context)
        taken: list[SaveSpan] = []
        count = 0
        for span, wanted in spans:
            blocks = sum(len(part.blocks) for part in wanted.parts)
            if blocks > room and (taken or self._held):
                break
            room -= blocks
            if wanted.parts:
                taken.append(wanted)
            progress.span = max(progress.span, span + 1)
            count += 1
        progress.unsaved = note((wanted.parts for _, wanted in spans[count:]), context)
        return tuple(taken)

    def _of_ended(self, context: SchedulerContext) -> tuple[SaveSpan, ...]:
        """Return what requests that have ended left, as far as it may be held now."""
        if not self._unsaved:
            return ()
        room = self._room(context)
        spans = self._unsaved.take(room, not self._held, lambda part: bool(self._new([part], [])), context)
        return tuple(SaveSpan((number, 1), parts) for number, parts in enumerate(spans))

    def _room(self, context: SchedulerContext) -> int:
        return max(1, context.num_blocks // _SHARE_HELD) - self._held

    def _lazy(self, context: SchedulerContext) -> list[Save]:
        """Return a save of the blocks that the engine gives up next and L1 does not have."""
        parts: dict[bytes, SavePart] = {}
        room = self._room(context)
        # More than half of L1 would evict what was saved just now, over and over.
        ahead = min(self._ahead, -(-self._tracker.capacity // 2))
        for seen, view in enumerate(context.iter_free_blocks()):
            if len(parts) >= room or seen >= ahead:
                break
            part = self._part_of(view)
            # Two requests that computed the same at once have left two blocks with one hash.
            if part is not None and part.key not in parts:
                parts |= {each.key: each for each in self._new([part], [])}
        spans = tuple(SaveSpan((number, 1), (part,)) for number, part in enumerate(parts.values()))
        return [self._begin("", spans, context, reuse_first=True)] if spans else []

    def _part_of(self, view: KVCacheBlockView) -> SavePart | None:
        """Return the part that a block of the free queue is; None for one that is none."""
        if view.hash_without_group is None or view.group_id not in self._group_ids:
            return None
        if view.num_tokens is not None and view.num_tokens % self._planner.span_tokens:
            return None
        group = self._group_ids.index(view.group_id)
        return SavePart(part_key(self._combine(view.hash_without_group), group), group, (view.block_id,))

    def _begin(
        self, request_id: str, spans: tuple[SaveSpan, ...], context: SchedulerContext, *, reuse_first: bool = False
    ) -> Save:
        save = Save(next(self._numbers), request_id, spans)
        blocks = tuple(block for span in spans for part in span.parts for block in part.blocks)
        context.touch(blocks)
        self._held += len(blocks)
        self._open[save.number] = _Open(save, blocks, reuse_first)
        for span in spans:
            for part in span.parts:
                self._saving[part.key] = save.number
        return save


def _block_ids(output: Any, request_id: str) -> Sequence[Sequence[int]] | None:
    state = output.kv_connector_block_state
    if hasattr(state, "get_block_ids"):
        ids: Sequence[Sequence[int]] | None = state.get_block_ids(request_id)
        return ids
    found: Sequence[Sequence[int]] | None = state.block_ids.get(request_id)  # vLLM 0.29
    return found


def _boundary_states(output: Any) -> dict[str, Sequence[tuple[int, int, int]]]:
    state = output.kv_connector_block_state
    offloads = getattr(state, "boundary_state_offloads", None)
    if offloads is None:
        offloads = getattr(output, "boundary_state_offloads", None)
    return offloads or {}
