"""Transfer facts by request: measured in the worker, carried to the scheduler by vLLM's worker metadata."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata

from kvserving_connector.core.handoffs import TransferFacts, merge_facts
from kvserving_connector.core.staging_cost import Sample


@dataclass
class TransferReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What happened in this step on one rank, or on all ranks after ``aggregate``; ``facts`` of ended loads."""

    facts: dict[str, TransferFacts] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    """Ranks that are through with the staging slot of each request."""
    samples: list[Sample] = field(default_factory=list)
    """What transfers cost, as decode engines told."""

    def __bool__(self) -> bool:
        return bool(self.facts or self.sent or self.samples)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> TransferReport:
        """Merge another rank's report: bytes, reporters and ranks add up, the slowest rank's seconds stay."""
        if isinstance(other, TransferReport):
            merge_facts(self.facts, other.facts)
            for request_id, count in other.sent.items():
                self.sent[request_id] = self.sent.get(request_id, 0) + count
            self.samples += other.samples
        return self


class TransferRecorder:
    """Measures the transfers of one NIXL worker by request.

    vLLM's worker records telemetry of all transfers into one statistics object. The recorder stands in front of the
    worker's own poll and runs it for one request at a time, so that what is added belongs to that request.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._measured: dict[str, TransferFacts] = {}
        self._ended: dict[str, TransferFacts] = {}
        self._poll = worker._pop_done_transfers
        worker._pop_done_transfers = self.poll

    def poll(self, transfers: dict[str, list[int]]) -> Any:
        """Stand in for the worker's poll: same argument, same effect on it, same result."""
        done: set[str] = set()
        failed: set[str] | None = None
        for request_id in list(transfers):
            one = {request_id: transfers[request_id]}
            before = self._lengths()
            result = self._poll(one)
            self._measure(request_id, before)
            if request_id in one:
                transfers[request_id] = one[request_id]
            else:
                del transfers[request_id]
            # vLLM 0.30 and newer also return the requests that failed.
            if isinstance(result, tuple):
                done |= result[0]
                failed = (failed or set()) | result[1]
            else:
                done |= result
        if failed is not None:
            return done, failed
        # With nothing to poll the worker itself tells which form its result has.
        return done if transfers or done else self._poll(transfers)

    def ended(self, request_ids: Iterable[str], failed: Iterable[str]) -> dict[str, TransferFacts]:
        """Note the requests whose loads ended in this step and which of them failed; return their facts."""
        noted: dict[str, TransferFacts] = {}
        lost = frozenset(failed)
        for request_id in request_ids:
            facts = self._measured.pop(request_id, None) or TransferFacts()
            facts.reporters = 1
            facts.failed = request_id in lost
            self._ended[request_id] = noted[request_id] = facts
        return noted

    def report(self) -> TransferReport | None:
        """Return the facts noted since the last call, None without any."""
        if not self._ended:
            return None
        facts, self._ended = self._ended, {}
        return TransferReport(facts)

    def _lengths(self) -> int:
        return len(self._worker.xfer_stats.data["bytes_transferred"])

    def _measure(self, request_id: str, before: int) -> None:
        data = self._worker.xfer_stats.data
        moved = data["bytes_transferred"][before:]
        if not moved:
            return
        facts = self._measured.setdefault(request_id, TransferFacts())
        facts.bytes += int(sum(moved))
        facts.descriptors += int(sum(data["num_descriptors"][before:]))
        facts.seconds = max(facts.seconds, *(float(item) for item in data["transfer_duration"][before:]))
