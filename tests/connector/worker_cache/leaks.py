"""What an engine must not keep when nothing is going on."""

from __future__ import annotations

from typing import Any


def left_by(engine: Any) -> dict[str, Any]:
    """Return what is left, by name; nothing when all is well."""
    head, pool = engine.head, engine.scheduler.kv_cache_manager.block_pool
    found = {
        "loads": head._loading,
        "lookups": head._lookups._waiting,
        "requests": head._requests,
        "requests that failed": head._failing,
        "probes": head._lookups._asked,
        "probes by request": head._lookups._numbers,
        "reports about probes": len(head._lookups._quorum),
        "hashes": len(head._hashes),
        "saves": len(head._saves),
        "spans that wait to be saved": head._saves.waiting,
        "reports about saves": len(head._saves._quorum),
        "parts being saved": head._saves._saving,
        "requests that are saved": head._saves._requests,
        "blocks of saves": head._saves._held,
        "references to blocks": engine.connector.scheduler_context.held,
        "blocks in use": len(pool.blocks) - 1 - pool.get_num_free_blocks(),
    }
    for rank in engine.ranks:
        half = rank.half
        own = {
            "saves": half._saves,
            "copies": half._copying,
            "loads": half._loads,
            "stores": half._storing,
            "parts being written": half._writing,
            "ends of loads": half._ended,
            "failed blocks": half._failed_blocks,
            "failed requests": half._failed_requests,
            "pins": [key for key, part in rank.pool._parts.items() if part.pins],
        }
        if half._probes is not None:
            own |= {"probes": half._probes._open, "reads": half._probes._reads, "answers": half._probes._ready}
        found |= {f"{name} of rank {half.rank}": value for name, value in own.items()}
    return {name: value for name, value in found.items() if value}
