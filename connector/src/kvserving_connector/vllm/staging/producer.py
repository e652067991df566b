"""A prefill rank's pool: finished prompts are gathered into it in the step that completes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from kvserving_connector.core.staging import HEADER_BYTES, Headers, Slot
from kvserving_connector.core.staging_desk import StagingStep
from kvserving_connector.vllm.staging.rows import Rows


class Producer:
    """Gathers on the stream that computes, so that what writes the same blocks later comes after.

    Before any of a later step's loads begins, what was gathered must be over: they have streams of their own.
    """

    def __init__(self, pool: torch.Tensor) -> None:
        self.pool = pool
        self._rows: Rows | None = None
        self._blocks_per_row = 1
        self._headers = Headers()
        self._staged: set[str] = set()
        self._sent: dict[str, int] = {}
        self._gathered: Any = None

    def register(self, rows: Rows, rows_per_block: int) -> None:
        """Take the cache's rows, and how many of them are one of the scheduler's blocks."""
        self._rows, self._blocks_per_row = rows, rows_per_block

    def gather(self, step: StagingStep) -> None:
        """Do a step's work; the model's own of this step must be on the current stream before."""
        assert self._rows is not None
        for request_id, work in step.gather.items():
            self._write(
                work.slot, [self._blocks_per_row * b + i for b in work.blocks for i in range(self._blocks_per_row)]
            )
            self._staged.add(request_id)
        self._staged.difference_update(step.dropped)
        if step.gather and self.pool.is_cuda:
            self._gathered = torch.cuda.Event()
            self._gathered.record()

    def settle(self) -> None:
        """Wait until what was gathered in earlier steps is in its slots."""
        if self._gathered is not None:
            self._gathered.synchronize()
            self._gathered = None

    def divert(self, done: Iterable[str]) -> set[str]:
        """Return those of vLLM's finished sends whose blocks it still holds; the others' slots are over."""
        found = set(done)
        for request_id in found & self._staged:
            self._staged.discard(request_id)
            self._sent[request_id] = 1
        return found - self._sent.keys()

    def sent(self) -> dict[str, int]:
        """Return the requests whose slots this rank is through with, since the last call."""
        sent, self._sent = self._sent, {}
        return sent

    def _write(self, slot: Slot, blocks: list[int]) -> None:
        assert self._rows is not None
        for at in self._headers.overwritten_by(slot):
            self._word(at, 0).fill_(slot.generation)
        self._word(slot.offset, 0).fill_(slot.generation)
        self._rows.gather(self._rows.indices(blocks), self.pool[slot.rows_offset : slot.end])
        self._word(slot.offset, 1).fill_(slot.generation)

    def _word(self, offset: int, number: int) -> torch.Tensor:
        return self.pool[offset : offset + HEADER_BYTES].view(torch.int64)[number : number + 1]
