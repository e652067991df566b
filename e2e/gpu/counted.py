"""Counters of engines by what they mean here: one table, to be changed with the names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from e2e.local.tiers import read

COUNTERS: Mapping[str, str] = {
    "seconds": "vllm:nixl_xfer_time_seconds_sum",
    "post_seconds": "vllm:nixl_post_time_seconds_sum",
    "bytes": "vllm:nixl_bytes_transferred_sum",
    "descriptors": "vllm:nixl_num_descriptors_sum",
    "reads": "vllm:nixl_xfer_time_seconds_count",
    "our_bytes": "kvserving:transfer_bytes_total",
    "our_seconds": "kvserving:transfer_seconds_total",
    "transfers": "kvserving:transfers_total",
    "tokens": "kvserving:transfer_tokens_total",
    "failures": "kvserving:transfer_failures_total",
    "staged": "kvserving:staging_slots_total",
    "slots_released": "kvserving:staging_slots_released_total",
    "descriptors_saved": "kvserving:staging_descriptors_saved_total",
    "direct": "kvserving:staging_direct_total",
    "staged_loads": "kvserving:staged_loads_total",
    "staged_bytes": "kvserving:staged_load_bytes_total",
    "staged_wait_seconds": "kvserving:staged_load_wait_seconds_total",
    "external_tokens": "vllm:external_prefix_cache_hits_total",
    "l1_tokens": "kvserving:tier_load_tokens_total",
}
USAGE = "vllm:kv_cache_usage_perc"
RUNNING = ("vllm:num_requests_running", "vllm:num_requests_waiting")


async def gauges(url: str) -> tuple[float, int]:
    """Return the share of the KV cache in use, and the requests that run or wait, of the engine at ``url``."""
    samples = (await asyncio.to_thread(read, url)).samples
    usage = sum(value for (name, _), value in samples.items() if name == USAGE)
    return usage, int(sum(value for (name, _), value in samples.items() if name in RUNNING))


async def counters(*urls: str) -> dict[str, float]:
    """Return what the engines at ``urls`` have counted together; what an engine does not count is left out."""
    found: dict[str, float] = {}
    for url in urls:
        samples = (await asyncio.to_thread(read, url)).samples
        for meaning, metric in COUNTERS.items():
            values = [value for (name, _), value in samples.items() if name == metric]
            if values:
                found[meaning] = found.get(meaning, 0.0) + sum(values)
    return found


def since(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return what was counted between two looks, without what was not."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: round(value, 6) for name, value in grown.items() if value}


def slots_in_use(counted: Mapping[str, float]) -> int:
    """Return the staging slots that were taken and not given back."""
    return int(counted.get("staged", 0) - counted.get("slots_released", 0))
