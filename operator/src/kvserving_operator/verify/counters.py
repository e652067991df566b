"""Counters that an engine exports, read from its Prometheus text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

_TRANSFERRED = "vllm:nixl_bytes_transferred_sum"
_TRANSFERS = "vllm:nixl_bytes_transferred_count"
_FAILED = "vllm:nixl_num_failed_transfers_total"
_HITS = "vllm:external_prefix_cache_hits_total"
_QUERIES = "vllm:external_prefix_cache_queries_total"
_RECEIPTS = "kvserving:receipts_total"
_REFUSED = "kvserving:guard_refused_total"


@dataclass(frozen=True)
class Counters:
    """What one engine had counted at one moment, summed over its ranks.

    ``connector`` tells whether the engine runs the KVServing connector, which alone exports receipts.
    """

    transferred_bytes: float = 0
    transfers: float = 0
    failed_transfers: float = 0
    external_hits: float = 0
    external_queries: float = 0
    receipts: float = 0
    refused: Mapping[str, float] = field(default_factory=dict)
    connector: bool = False

    def since(self, before: Counters) -> Counters:
        """Return what was counted after ``before``; counters of an engine that restarted in between count from zero."""
        return Counters(
            transferred_bytes=_grown(before.transferred_bytes, self.transferred_bytes),
            transfers=_grown(before.transfers, self.transfers),
            failed_transfers=_grown(before.failed_transfers, self.failed_transfers),
            external_hits=_grown(before.external_hits, self.external_hits),
            external_queries=_grown(before.external_queries, self.external_queries),
            receipts=_grown(before.receipts, self.receipts),
            refused={
                reason: grown
                for reason, value in self.refused.items()
                if (grown := _grown(before.refused.get(reason, 0), value))
            },
            connector=self.connector,
        )


def parse(text: str) -> Counters:
    """Return the counters in ``text``. Raises ``ValueError`` when it is not Prometheus text."""
    sums: dict[str, float] = {}
    refused: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
            if sample.name == _REFUSED:
                reason = sample.labels.get("reason", "")
                refused[reason] = refused.get(reason, 0) + sample.value
    return Counters(
        transferred_bytes=sums.get(_TRANSFERRED, 0),
        transfers=sums.get(_TRANSFERS, 0),
        failed_transfers=sums.get(_FAILED, 0),
        external_hits=sums.get(_HITS, 0),
        external_queries=sums.get(_QUERIES, 0),
        receipts=sums.get(_RECEIPTS, 0),
        refused=refused,
        connector=_RECEIPTS in sums,
    )


def _grown(before: float, after: float) -> float:
    return after - before if after >= before else after
