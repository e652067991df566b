"""The dashboard of one service's tiers."""

from __future__ import annotations

from .panels import Panel, Query, Row, dashboard
from .queries import CHOICE, gauge, occurring, rate, ratio, total


def render() -> str:
    """Return its JSON."""
    hits = Row(
        "Hits",
        (
            Panel(
                "Share of prompt tokens found",
                "In the engine's own cache, and outside of it (tiers, prefill).",
                tuple(
                    Query(
                        ratio(f"vllm:{kind}_hits_total", f"vllm:{kind}_queries_total", "kvserving_dev_role"),
                        f"{{{{kvserving_dev_role}}}} {name}",
                    )
                    for kind, name in (("prefix_cache", "own"), ("external_prefix_cache", "outside"))
                ),
                "percentunit",
            ),
            Panel(
                "Choice of connector",
                "Requests per second that a connector had tokens for.",
                (Query(rate("vllm:kv_connector_mc_hits_total", "connector"), "{{connector}}"),),
            ),
            Panel(
                "Tokens loaded per second",
                "From the tiers.",
                (Query(rate("kvserving:tier_load_tokens_total", "tier"), "{{tier}}"),),
            ),
        ),
    )
    loads = Row(
        "Loads",
        (
            Panel(
                "Seconds per load",
                "Mean time that requests waited for a tier.",
                (
                    Query(
                        ratio("kvserving:tier_load_seconds_total", "kvserving:tier_loads_total", "tier"),
                        "{{tier}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Seconds per token",
                "What the choice is made by: loading from a tier against computing.",
                (
                    Query(gauge("avg by (tier)", "kvserving:tier_load_seconds_per_token"), "{{tier}}"),
                    Query(gauge("avg", "kvserving:prefill_seconds_per_token"), "computing"),
                ),
                "s",
            ),
            Panel(
                "Not loaded per second",
                "Hits that were left, as computing is faster or L2 was silent; look-ups without an answer in time.",
                (
                    Query(rate("kvserving:tier_loads_skipped_total", "tier"), "{{tier}} left"),
                    Query(total("kvserving:tier_timeouts_total"), "no answer"),
                ),
            ),
        ),
    )
    store = Row(
        "Shared store (L2)",
        (
            Panel(
                "Bytes per second",
                "Read and written.",
                (
                    Query(total("kvserving:store_read_bytes_total"), "read"),
                    Query(total("kvserving:store_written_bytes_total"), "written"),
                ),
                "Bps",
            ),
            Panel(
                "Chunks found per second",
                "When they were looked up; those that were not found by the reasons that occur.",
                (
                    Query(total("kvserving:store_hits_total"), "found"),
                    Query(total("kvserving:store_misses_total"), "missed"),
                    Query(occurring("kvserving:store_misses_total", "reason"), "missed: {{reason}}"),
                ),
            ),
            Panel(
                "Not written per second",
                "Chunks that were skipped: all, and the reasons that occur.",
                (
                    Query(total("kvserving:store_skipped_chunks_total"), "all"),
                    Query(occurring("kvserving:store_skipped_chunks_total", "reason"), "{{reason}}"),
                ),
            ),
            Panel(
                "Given up per minute",
                "At their deadline, by operation.",
                (Query(rate("kvserving:store_timeouts_total", "operation", times=" * 60"), "{{operation}}"),),
            ),
            Panel(
                "Under way",
                "Chunks being loaded or stored.",
                (Query(gauge("sum by (operation)", "kvserving:store_pending_chunks"), "{{operation}}"),),
            ),
        ),
    )
    workers = Row(
        "L1 that workers own",
        (
            Panel(
                "Memory",
                "Size, and what of it holds KV; all ranks.",
                (
                    Query(gauge("sum", "kvserving:worker_cache_capacity_bytes"), "size"),
                    Query(gauge("sum", "kvserving:worker_cache_used_bytes"), "in use"),
                ),
                "bytes",
            ),
            Panel(
                "Tokens saved and lost per second",
                "Copied to host memory by every rank; no longer on every rank.",
                (
                    Query(total("kvserving:worker_cache_saved_tokens_total"), "saved"),
                    Query(total("kvserving:worker_cache_lost_tokens_total"), "lost"),
                ),
            ),
            Panel(
                "Promised, loaded and failed",
                "Tokens per second: promised to requests; loaded by every rank; not loaded by some rank, so that the "
                "request fails or computes them, by transfer.onFailure.",
                tuple(
                    Query(rate(f"kvserving:worker_cache_{what}_tokens_total", "tier"), f"{{{{tier}}}} {what}")
                    for what in ("promised", "loaded", "failed")
                ),
            ),
            Panel(
                "Tracked parts",
                "What the scheduler knows every rank to hold.",
                (Query(gauge("sum", "kvserving:worker_cache_tracked_parts"), "parts"),),
            ),
        ),
    )
    rows = (hits, loads, store, workers)
    return dashboard("cache", "KVServing / Cache", "Tiers of one KVServing object.", CHOICE, rows)
