"""The scheduler's side of staging on a prefill engine: which finished prompts get a slot, and until when.

A slot is taken in the step that completes a prompt, handed out with the transfer parameters, and given back when every
rank has said that its reader is done or that its lease is over. A prompt that ends otherwise gives it back at once:
nobody was told of it.

A request here is anything with vLLM's ``request_id``, ``kv_transfer_params``, ``num_prompt_tokens`` and
``num_computed_tokens``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvserving_connector.core.staging import MAX_GENERATION, STAGED_KEY, RangePool, Slot, runs, slot_bytes
from kvserving_connector.core.staging_cost import CostBook, Sample, Way


class Direct(StrEnum):
    """Why a prompt's KV is left in its blocks; the metrics' ``reason`` label."""

    COST = "cost"
    """Reading the blocks costs no more, for example because they are adjacent."""
    MEASURING = "measuring"
    """Staging costs less; this one only measures the other way."""
    FULL = "full"
    """No hole of the pool is large enough now."""
    LARGE = "large"
    """The prompt is larger than the pool."""


@dataclass(frozen=True)
class Layout:
    """What every rank's workers said of their rows: bytes, rows of one block of the scheduler, regions."""

    row_bytes: int
    rows_per_block: int
    regions: int


@dataclass(frozen=True)
class Gather:
    """Work of one step on every rank: copy these blocks, in this order, into the slot."""

    slot: Slot
    blocks: tuple[int, ...]


@dataclass
class StagingStep:
    """What the ranks are told with one step."""

    gather: dict[str, Gather] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    """Requests whose slot was given back although they were gathered: they are vLLM's to report again."""

    def __bool__(self) -> bool:
        return bool(self.gather or self.dropped)


@dataclass
class StagingTally:
    """What happened since the last drain, as lists: vLLM merges connector statistics by joining lists."""

    staged: list[int] = field(default_factory=list)
    """Bytes of one rank, of each prompt that was gathered."""
    saved: list[int] = field(default_factory=list)
    """Descriptors of one rank that each of them would have taken."""
    direct: list[str] = field(default_factory=list)
    """Reasons for prompts that were not."""
    released: list[int] = field(default_factory=list)
    """A 1 for each slot given back."""


@dataclass
class LoadTally:
    """Staged loads of one decode rank since the last drain: bytes of each, and seconds that it waited for room."""

    bytes: list[int] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)


@dataclass
class _Prompt:
    request: Any
    blocks: list[int] = field(default_factory=list)
    decided: bool = False
    slot: Slot | None = None
    whole: bool = False
    """Whether the slot holds what the blocks hold now."""


class StagingDesk:
    """Decides for every prompt that a decode engine will fetch."""

    def __init__(
        self,
        *,
        capacity: int,
        layout: Layout,
        block_tokens: int,
        ranks: int,
        generation: int,
        costs: CostBook | None,
    ) -> None:
        """``generation`` is the first slot's; without ``costs`` every prompt that fits is staged."""
        self._pool = RangePool(capacity)
        self._layout = layout
        self._block_tokens = block_tokens
        self._ranks = ranks
        self._generation = generation
        self._costs = costs
        self._prompts: dict[str, _Prompt] = {}
        self._handed: dict[str, Slot] = {}
        self._sent: dict[str, int] = {}
        self._dropped: list[str] = []
        self._tally = StagingTally()

    @property
    def handed_out(self) -> int:
        """Slots that somebody may be reading."""
        return len(self._handed)

    @property
    def used_bytes(self) -> int:
        """Bytes of the pool that are taken."""
        return self._pool.used

    def allocated(self, request: Any) -> None:
        """Note a request that got blocks; only those that a decode engine will fetch are followed."""
        params = request.kv_transfer_params
        if isinstance(params, Mapping) and params.get("do_remote_decode"):
            self._prompts.setdefault(request.request_id, _Prompt(request)).request = request

    def blocks(self, request_id: str, blocks: Iterable[int], *, whole: bool) -> None:
        """Take blocks of a request: all that it has when ``whole``, else further ones.

        All of them come at first and again after a preemption, when they are computed anew.
        """
        prompt = self._prompts.get(request_id)
        if prompt is None:
            return
        if whole:
            prompt.blocks, prompt.decided, prompt.whole = [], False, False
        prompt.blocks.extend(blocks)

    def step(self, scheduled: Mapping[str, int]) -> StagingStep:
        """Return the work for a step that computes so many tokens of each request."""
        step = StagingStep()
        for request_id, tokens in scheduled.items():
            prompt = self._prompts.get(request_id)
            if prompt is None or prompt.decided:
                continue
            if prompt.request.num_computed_tokens + tokens < prompt.request.num_prompt_tokens:
                continue
            prompt.decided = True
            blocks = tuple(prompt.blocks[: -(-prompt.request.num_prompt_tokens // self._block_tokens)])
            slot = self._slot(prompt, len(blocks), runs(blocks)) if blocks else None
            if slot is not None:
                prompt.slot, prompt.whole = slot, True
                step.gather[request_id] = Gather(slot, blocks)
            elif prompt.slot is not None:
                self._drop(request_id, prompt.slot)
                prompt.slot = None
        step.dropped = tuple(each for each in self._dropped if each not in step.gather)
        self._dropped.clear()
        return step

    def finished(
        self, request_id: str, delay: bool, params: dict[str, Any] | None
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return what vLLM gets for what its connector answered when the request finished.

        A staged request's blocks are free at once. Its parameters name the slot and no blocks: an engine that knows no
        slots cannot take them for the blocks of another prompt.
        """
        prompt = self._prompts.pop(request_id, None)
        if prompt is None or prompt.slot is None:
            return delay, params
        if not (delay and params and prompt.whole):
            self._drop(request_id, prompt.slot)
            return delay, params
        self._handed[request_id] = prompt.slot
        groups = len(params["remote_block_ids"])
        return False, {
            **params,
            "remote_block_ids": [[] for _ in range(groups)],
            STAGED_KEY: prompt.slot.params(),
        }

    def sent(self, counts: Mapping[str, int]) -> None:
        """Take how many ranks are through with each request; after the last one its slot is given back."""
        for request_id, count in counts.items():
            if request_id not in self._handed:
                continue
            self._sent[request_id] = self._sent.get(request_id, 0) + count
            if self._sent[request_id] >= self._ranks:
                del self._sent[request_id]
                self._free(self._handed.pop(request_id))

    def observed(self, samples: Iterable[Sample]) -> None:
        """Take measurements of decode engines."""
        if self._costs is not None:
            for sample in samples:
                self._costs.observe(sample)

    def drain(self) -> StagingTally | None:
        """Return what happened since the last call, None when nothing did."""
        tally, self._tally = self._tally, StagingTally()
        return tally if tally != StagingTally() else None

    def _slot(self, prompt: _Prompt, blocks: int, ranges: int) -> Slot | None:
        rows = blocks * self._layout.rows_per_block
        size = slot_bytes(rows, self._layout.row_bytes)
        if prompt.slot is not None:
            # Gathered before a preemption, and never handed out: the same place holds it again.
            return self._new(prompt.slot.offset, rows, ranges) if prompt.slot.rows == rows else None
        if self._costs is not None:
            choice = self._costs.choose(rows * self._layout.row_bytes, ranges * self._layout.regions)
            if choice.way is Way.DIRECT:
                self._tally.direct.append((Direct.MEASURING if choice.measuring else Direct.COST).value)
                return None
        offset = self._pool.take(size)
        if offset is None:
            self._tally.direct.append((Direct.LARGE if size > self._pool.capacity else Direct.FULL).value)
            return None
        return self._new(offset, rows, ranges)

    def _new(self, offset: int, rows: int, ranges: int) -> Slot:
        self._tally.staged.append(rows * self._layout.row_bytes)
        self._tally.saved.append(ranges * self._layout.regions)
        slot = Slot(offset, self._generation, rows, self._layout.row_bytes)
        self._generation = self._generation % MAX_GENERATION + 1
        return slot

    def _drop(self, request_id: str, slot: Slot) -> None:
        self._dropped.append(request_id)
        self._free(slot)

    def _free(self, slot: Slot) -> None:
        self._pool.free(slot.offset)
        self._tally.released.append(1)
