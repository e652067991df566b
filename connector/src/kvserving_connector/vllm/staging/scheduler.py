"""The scheduler's half of staging, between vLLM's scheduler and the desk."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvserving_connector.core.signing import LEASE_KEY, expiry_of
from kvserving_connector.core.staging import Slot
from kvserving_connector.core.staging_desk import Layout, StagingDesk, StagingTally
from kvserving_connector.settings import logger
from kvserving_connector.vllm.lease import TERM, UNTIL
from kvserving_connector.vllm.receipt import TransferReport
from kvserving_connector.vllm.staging import eligible
from kvserving_connector.vllm.staging.consumer import SLOT
from kvserving_connector.vllm.staging.wire import Pool
from kvserving_connector.vllm.staging.worker import STEP


class StagingScheduler:
    """On prefill it decides which prompts are staged; on decode it hands slots and ends of handoffs to the workers."""

    def __init__(self, vllm_config: Any, nixl: Any) -> None:
        """``nixl`` is vLLM's scheduler half. Raises ValueError for settings that cannot be."""
        self._costs = eligible.costs(vllm_config)
        self._half = eligible.half_of(vllm_config)
        on = self._half is not None and eligible.staging_bytes(vllm_config) > 0
        self._on = on and not eligible.obstacle(vllm_config, nixl)
        groups = nixl.kv_cache_config.kv_cache_groups
        self._block_tokens = groups[0].kv_cache_spec.block_size if groups else 1
        self._desk: StagingDesk | None = None
        self._slots: dict[str, Slot] = {}
        self._terms: dict[str, dict[str, int]] = {}

    @property
    def pending(self) -> bool:
        """Whether slots are handed out: vLLM must go on with its steps, in which their ends are noticed."""
        return self._desk is not None and self._desk.handed_out > 0

    def met(self, payloads: Mapping[Any, Any]) -> None:
        """Take the ranks' handshake metadata; staging begins when all have pools that are alike."""
        if self._half != "producer" or not self._on:
            return
        pools = [Pool.of(getattr(payload, "staging", None)) for payload in payloads.values()]
        first = pools[0] if pools else None
        if first is None or any(pool is None or first.other_form(pool) for pool in pools) or len(pools) != first.ranks:
            logger.info("KVServing: transfers are not staged: the ranks' pools are not alike")
            return
        self._desk = StagingDesk(
            capacity=min(pool.bytes for pool in pools if pool is not None),
            layout=Layout(first.row_bytes, first.rows_per_block, len(first.row)),
            block_tokens=self._block_tokens,
            ranks=first.ranks,
            generation=1 + secrets.randbits(40),
            costs=self._costs,
        )

    def allocated(self, request: Any) -> None:
        """Note a request that got blocks."""
        if self._desk is not None:
            self._desk.allocated(request)
        params = request.kv_transfer_params
        if not isinstance(params, Mapping) or not params.get("do_remote_prefill"):
            return
        if (slot := Slot.of(params)) is not None:
            self._slots[request.request_id] = slot
        if (expiry := expiry_of(params)) is not None:
            told = params.get(LEASE_KEY)
            self._terms[request.request_id] = {UNTIL: expiry} | ({TERM: told} if told is not None else {})

    def build(self, metadata: Any, scheduler_output: Any) -> None:
        """Add this step's work to vLLM's metadata of it."""
        for request_id, meta in metadata.reqs_to_recv.items():
            if (slot := self._slots.pop(request_id, None)) is not None:
                setattr(meta, SLOT, slot)
            for name, value in self._terms.pop(request_id, {}).items():
                setattr(meta, name, value)
        if self._desk is not None:
            for request_id, blocks, whole in _blocks(scheduler_output):
                self._desk.blocks(request_id, blocks, whole=whole)
            step = self._desk.step(scheduler_output.num_scheduled_tokens)
            if step:
                setattr(metadata, STEP, step)

    def finished(self, request: Any, delay: bool, params: dict[str, Any] | None) -> tuple[bool, dict[str, Any] | None]:
        """Return what vLLM gets instead of what its own connector answered."""
        self._slots.pop(request.request_id, None)
        self._terms.pop(request.request_id, None)
        if self._desk is None:
            return delay, params
        return self._desk.finished(request.request_id, delay, params)

    def reported(self, report: TransferReport) -> None:
        """Take the ranks' report of a step."""
        if self._desk is not None:
            self._desk.sent(report.sent)
            self._desk.observed(report.samples)

    def drain(self) -> StagingTally | None:
        """Return what happened since the last call, None when nothing did."""
        return self._desk.drain() if self._desk is not None else None


def _blocks(scheduler_output: Any) -> Iterator[tuple[str, Iterable[int], bool]]:
    """Yield the blocks that a step's requests got, and whether they are all that each has."""
    for new in scheduler_output.scheduled_new_reqs:
        yield new.req_id, new.block_ids[0], True
    cached = scheduler_output.scheduled_cached_reqs
    for request_id, groups in zip(cached.req_ids, cached.new_block_ids, strict=True):
        resumed = request_id in cached.resumed_req_ids
        if groups is not None or resumed:
            yield request_id, groups[0] if groups else (), resumed
