"""What the engines have counted since they started: transfers, leases, refusals, tiers, and how they are set up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...amounts import size
from ...control import recompute
from ...verify.counters import Counters
from ..facts import Disk, Engine, Live, ObjectFacts, Series, role_of
from ..findings import Finding, error, info, warning

_SETUP = "vllm:cache_config_info"
_SAME = ("block_size", "cache_dtype", "prefix_caching_hash_algo")
_ENDED = "vllm:request_success_total"
_MANY_PREEMPTIONS = 0.1
_FEW_EXPIRED = 0.02
"""Share of an engine's requests whose clients may leave between prefill and decode in a service that is well."""
HARMLESS = frozenset({"absent", "remembered", "present", "busy", "timeout", "paused", "closed"})
"""Reasons of the store's misses and skips that are no fault of anyone, or are told by the timeouts."""


_SPOILED = "its memory or disk, or who else writes to it: objects are not what engines wrote"
STORE_FIXES = {
    "denied": "its password, or whether engines may write to its folder",
    "full": "it is at its bound, and is written to faster than it evicts: raise spec.cache.l2.size, or of a store of "
    "yours maxmemory, and let that evict (maxmemory-policy allkeys-lru)",
    "disk-full": "the disk under the store is full whatever spec.cache.l2.size says: free some of it, or give it a "
    "larger volume",
    "unreachable": "network policies and its address",
    "unavailable": "the store's own log: it loads, or its cluster is down",
    "read-only": "whether its address is that of a replica, its disk is mounted read-only, or its own saves fail",
    "protocol": "whether its address is that of a Valkey or Redis",
    "io": "the engine's log says how its disk fails",
    **dict.fromkeys(("truncated", "checksum", "format", "namespace", "key", "length"), _SPOILED),
}
"""What to look at for each reason of the connector's that is a fault of the store."""


def findings(facts: ObjectFacts, live: Live) -> Iterator[Finding]:
    """Findings about the engines that answered."""
    roles = {str(pod["metadata"]["name"]): role_of(pod) for pod in live.pods}
    # The spec of a service on this machine is not kept; its roles are.
    prefill = "prefill" in roles.values() if facts.serving is None else facts.serving.spec.prefill is not None
    for pod, engine in live.engines.items():
        role = roles.get(pod, "")
        yield from _version(live, pod, engine)
        yield from _engine(f"pod {pod}", engine.series)
        if prefill:
            yield from _transfers(f"pod {pod}", role, engine.series)
        yield from _tiers(f"pod {pod}", engine.series, live.disk)
    decodes = {pod: engine.series for pod, engine in live.engines.items() if roles.get(pod) == "decode"}
    if prefill:
        yield from _recompute(decodes)
    yield from _alike({pod: engine.series for pod, engine in live.engines.items()})


def _version(live: Live, pod: str, engine: Engine) -> Iterator[Finding]:
    planned = str((live.status.get("engine") or {}).get("version") or "")
    if engine.version is None or not planned:
        return
    running = engine.version.partition("+")[0]
    if running != planned:
        yield error(
            "engine-version",
            f"pod {pod}",
            f"it runs vLLM {engine.version}, and the object is planned for {planned}",
            why="flags and connector fields are written for another version, and the other role may refuse its KV",
            fix=f"set spec.engine.version: {running}, or an image that has {planned}",
        )


def _engine(where: str, series: Series) -> Iterator[Finding]:
    if series.label(_SETUP, "enable_prefix_caching") == "False":
        yield warning(
            "prefix-cache-off",
            where,
            "the engine runs without prefix caching",
            why="each turn of a conversation computes its whole prompt again",
            fix="remove --no-enable-prefix-caching; models with recurrent layers need --enable-prefix-caching",
        )
    preempted, requests = series.total("vllm:num_preemptions_total"), series.total(_ENDED)
    if preempted > 0 and preempted > _MANY_PREEMPTIONS * requests:
        yield warning(
            "preemptions",
            where,
            f"{preempted:.0f} requests were put back for want of KV blocks ({requests:.0f} ended)",
            why="a request that is put back computes again what it had",
            fix="lower --max-num-seqs or --max-model-len, raise --gpu-memory-utilization, or add engines",
        )
    waiting, running = series.total("vllm:num_requests_waiting"), series.total("vllm:num_requests_running")
    if waiting > 0 and running == 0:
        yield warning(
            "nothing-runs",
            where,
            f"{waiting:.0f} requests wait and none runs, at this moment",
            why="if it stays so, the engine stands still although /health answers",
            fix="look again; where it stays, restart the pod and keep its log",
        )


def _transfers(where: str, role: str, series: Series) -> Iterator[Finding]:
    if not series.has("kvserving:receipts_total"):
        yield warning(
            "connector-silent",
            where,
            "the engine exports no series of our connector",
            why="it may run another connector or none, and transfers cannot be proved",
            fix="look for 'kvserving_connector' in its log; an image of yours with connector: baked must have it",
        )
    if reused := series.total("vllm:nixl_num_notifications_after_expiry_total"):
        yield error(
            "read-after-lease",
            where,
            f"{reused:.0f} transfers ended after their lease",
            why="decode may have read blocks of another request: vLLM 0.29 and newer compute again, earlier ones use "
            "it, and such answers can be wrong",
            fix="make spec.transfer.lease four times the longest pause of a decode engine, or the longest transfer, "
            "and some seconds more",
        )
    yield from _expired(where, series)
    failed = series.total("vllm:nixl_num_failed_transfers_total")
    failed += series.total("vllm:nixl_num_failed_notifications_total")
    if lost := max(failed, series.total("kvserving:transfer_failures_total")):
        yield warning(
            "transfers-failed",
            where,
            f"{lost:.0f} transfers or their notifications failed",
            why="the request failed or was computed again, by spec.transfer.onFailure",
            fix="look for NIXL's error in its log: a peer that restarted, the network, memory that is not registered",
        )
    refused = {**series.by("kvserving:guard_refused_total", "reason")}
    for reason, count in series.by("kvserving:handoffs_refused_total", "reason").items():
        refused[reason] = refused.get(reason, 0) + count
    if refused and role == "decode":
        shown = ", ".join(f"{reason} {count:.0f}" for reason, count in sorted(refused.items()))
        yield warning(
            "handoffs-refused",
            where,
            f"the guard took transfer parameters out of requests: {shown}",
            why="decode computed those prompts itself; many mean a client that sends such parameters, or a router that "
            "mixes revisions",
            fix="foreign_revision: wait for the rollout; expired: a longer lease; others: see who sends them",
        )


def _expired(where: str, series: Series) -> Iterator[Finding]:
    """Requests whose KV was never fetched, where they are more than a small share of those that have ended."""
    expired = series.total("vllm:nixl_num_kv_expired_reqs_total")
    known, ended = series.has(_ENDED), series.total(_ENDED)
    if not expired or (known and expired <= _FEW_EXPIRED * ended):
        return
    count = f"{expired:.0f} request{'s' if expired != 1 else ''}"
    yield warning(
        "leases-expired",
        where,
        f"since the engine started, KV of {count}{f' of {ended:.0f}' if known else ''} was never fetched and given up",
        why="prefill worked for nothing, and its blocks were held for a whole lease each; the counter never falls, so "
        "that it may be of a fault that is over",
        fix="look again after some requests whether it grows. Where it does, look why decode did not ask: clients that "
        "left, requests that the router or decode refused, a decode engine that was full or started again (restarted, "
        "preemptions and handoffs-refused here; vllm:num_requests_waiting of decode)",
    )


def _recompute(decodes: Mapping[str, Series]) -> Iterator[Finding]:
    """The operator's own judgement, over all that the engines counted since their start."""
    for pod, series in decodes.items():
        counted = Counters(
            external_hits=series.total("vllm:external_prefix_cache_hits_total"),
            external_queries=series.total("vllm:external_prefix_cache_queries_total"),
            refused=series.by("kvserving:guard_refused_total", "reason"),
        )
        judged = recompute.judge({pod: counted})
        if judged.recomputing:
            share = counted.external_hits / counted.external_queries
            yield error(
                "decode-recomputes",
                f"pod {pod}",
                f"{share:.0%} of the {counted.external_queries:.0f} prompt tokens that it lacked came from prefill",
                why="prompts are computed twice; answers are right and late",
                fix="`verify` names the leg: engine, handoff or router",
            )


def _tiers(where: str, series: Series, disk: Disk | None) -> Iterator[Finding]:
    if timeouts := series.total("kvserving:tier_timeouts_total") + series.total("kvserving:store_timeouts_total"):
        yield warning(
            "store-slow",
            where,
            f"the shared store gave no answer in time {timeouts:.0f} times",
            why="each time a request waited in vain, and the store is then not asked for a while",
            fix="look at the store's load and network; loadTimeout bounds the wait",
        )
    for name, verb in (("kvserving:store_misses_total", "read"), ("kvserving:store_skipped_chunks_total", "write")):
        wrong = {r: n for r, n in series.by(name, "reason").items() if r not in HARMLESS}
        if wrong:
            shown = ", ".join(f"{reason} {count:.0f}" for reason, count in sorted(wrong.items()))
            yield warning(
                "store-fails",
                where,
                f"chunks could not be {'read' if verb == 'read' else 'written'}: {shown}",
                why="the store gives less than it could, or nothing",
                fix="; ".join(dict.fromkeys(f"{reason}: {_store_fix(reason, disk)}" for reason in sorted(wrong))),
            )
    yield from _l1(where, series)


def _store_fix(reason: str, disk: Disk | None) -> str:
    if reason == "disk-full" and disk is not None:
        return (
            f"{disk.folder} has {size(disk.free)} of {size(disk.total)} left: free some of that disk, or put the "
            "folder on another one; spec.cache.l2.size does not help"
        )
    return STORE_FIXES.get(reason, "the engine's log says more")


def _l1(where: str, series: Series) -> Iterator[Finding]:
    if failed := series.total("kvserving:worker_cache_failed_tokens_total"):
        yield warning(
            "l1-loads-failed",
            where,
            f"{failed:.0f} tokens that L1 had promised could not be loaded by every rank",
            why="the request failed or was computed again, by spec.transfer.onFailure",
            fix="its log names the rank and the error",
        )
    asked = series.total("vllm:kv_connector_mc_queries_total")
    hits = series.total("kvserving:tier_loads_total")
    skipped = series.total("kvserving:tier_loads_skipped_total")
    if asked and skipped > hits > 0:
        yield info(
            "tiers-slower-than-computing",
            where,
            f"{skipped:.0f} hits were left, {hits:.0f} loaded: computing was judged faster",
            why="the tier costs memory and helps little for such prompts",
            fix="longer prompts gain more; loads: always takes every hit",
        )


def _alike(engines: Mapping[str, Series]) -> Iterator[Finding]:
    for label in _SAME:
        found = {pod: value for pod, series in engines.items() if (value := series.label(_SETUP, label)) is not None}
        if len(set(found.values())) > 1:
            shown = ", ".join(f"{pod} {value}" for pod, value in sorted(found.items()))
            yield error(
                "engines-differ",
                "pods",
                f"{label} differs between the engines: {shown}",
                why="KV of one is useless or wrong for another, and prefixes are not found again",
                fix="leave the setting to the object (spec.engine.kv) and remove what changes single pods",
            )
