"""What the two halves of the connector send each other with every engine step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from kvserving_connector.core.ranges import Range
from kvserving_connector.core.reports import WorkerReport


@dataclass(frozen=True, slots=True)
class SavePart:
    """One part to be saved: its key, its cache group and the engine's blocks that hold it, in order."""

    key: bytes
    group: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SaveSpan:
    """The parts of one span that are saved together or not at all, and the span's range in hash blocks."""

    range: Range
    parts: tuple[SavePart, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """One save; ``number`` is unique to the engine, ``request_id`` is empty for blocks that no request has."""

    number: int
    request_id: str
    spans: tuple[SaveSpan, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What a request was promised. Columns, with one entry per block: thousands of blocks cross processes as one.

    A block is filled from the block ``indices`` of the part ``keys[parts]``; ``positions`` are those in the request's
    table of the block's group.
    """

    request_id: str
    keys: tuple[bytes, ...]
    parts: tuple[int, ...]
    groups: tuple[int, ...]
    indices: tuple[int, ...]
    block_ids: tuple[int, ...]
    positions: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.block_ids)


@dataclass(frozen=True, slots=True)
class Probe:
    """A question: how much of the prompt can be had from L1 and L2, of the spans with these ``keys``.

    ``number`` is unique to the engine.
    """

    number: int
    keys: tuple[bytes, ...]
    num_tokens: int
    local_tokens: int


@dataclass
class WorkerCacheMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """From the scheduler to every rank, once per engine step.

    ``applied`` is the step up to which reports were applied: what was reported lost until then may be overwritten.
    ``releases`` are numbers of probes that are no longer needed. ``used`` are parts that count as used now.
    """

    step: int
    applied: int
    saves: list[Save] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    used: list[bytes] = field(default_factory=list)
    reset: bool = False
    hash_root: str = ""


@dataclass
class WorkerCacheReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """From every rank to the scheduler, once per engine step."""

    report: WorkerReport

    def aggregate(self, other: Any) -> WorkerCacheReport:
        """Return one report for all ranks of both."""
        return WorkerCacheReport(self.report.merge(other.report))
