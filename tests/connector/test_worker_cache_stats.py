"""Statistics of the worker cache: merged from ranks and scheduler, carried as vLLM carries them, shown as series."""

from __future__ import annotations

import collections
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from tests.connector.multi_support import child, configuration, sent

from kvserving_connector.core.cost import CostModel
from kvserving_connector.core.loads import LoadTally, Tier
from kvserving_connector.store.client import Reason
from kvserving_connector.store.tally import Event, Tally
from kvserving_connector.vllm import series
from kvserving_connector.vllm.worker_cache import stats as names
from kvserving_connector.vllm.worker_cache.stats import WorkerCachePromMetrics, WorkerCacheStats

pytestmark = pytest.mark.engine


def metrics(engines: int = 1) -> WorkerCachePromMetrics:
    from vllm.v1.metrics.prometheus import unregister_vllm_metrics

    unregister_vllm_metrics()
    kinds = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    labels: dict[int, list[object]] = {engine: ["m", str(engine)] for engine in range(engines)}
    return WorkerCachePromMetrics(configuration([child("Scripted")]), kinds, ["model_name", "engine"], labels)


def carried(stats: WorkerCacheStats) -> Any:
    """What the API server gets of an engine's statistics."""
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.metrics.stats import SchedulerStats
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    outputs = EngineCoreOutputs(scheduler_stats=SchedulerStats(kv_connector_stats=sent(stats)))
    received = MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(outputs))
    return received.scheduler_stats.kv_connector_stats


def shown(name: str, engine: int = 0, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"model_name": "m", "engine": str(engine), **labels})


def test_ranks_and_scheduler_are_merged_and_shown_for_their_engine_alone() -> None:
    workers = []
    for rank in (0, 1):
        tally = Tally()
        tally.count(Event.HIT, number=3 + rank)
        tally.count(Event.MISS, Reason.CHECKSUM)
        workers.append(WorkerCacheStats())
        workers[rank].add_store(tally.take())
        workers[rank].level(names.USED, 1000 * (rank + 1), rank=rank)
        workers[rank].level(series.STORE_PENDING.name, 2, ("load",), rank=rank)
    head = WorkerCacheStats()
    head.add(names.PROMISED, 512, (Tier.L2,))
    head.add(names.LOST, 128)
    head.level(names.TRACKED, 7)
    api = metrics(engines=2)
    api.observe(carried(workers[0].aggregate(workers[1]).aggregate(head)), 1)
    assert shown("kvserving:store_hits_total", 1) == 7
    assert shown("kvserving:store_misses_total", 1, reason="checksum") == 2
    assert shown("kvserving:store_misses_total", 1, reason="absent") == 0
    assert shown("kvserving:store_pending_chunks", 1, operation="load") == 4
    assert shown("kvserving:worker_cache_used_bytes", 1) == 3000
    assert shown("kvserving:worker_cache_promised_tokens_total", 1, tier="l2") == 512
    assert shown("kvserving:worker_cache_promised_tokens_total", 1, tier="l1") == 0
    assert shown("kvserving:worker_cache_lost_tokens_total", 1) == 128
    assert shown("kvserving:worker_cache_tracked_parts", 1) == 7
    assert shown("kvserving:store_hits_total", 0) == shown("kvserving:worker_cache_used_bytes", 0) == 0


def test_counts_add_up_over_steps_and_a_rank_that_says_nothing_keeps_its_level() -> None:
    api = metrics()
    for used in ({0: 100, 1: 10}, {1: 20}, {0: 300}):
        step = WorkerCacheStats()
        step.add(names.SAVED, 16)
        for rank, value in used.items():
            step.level(names.USED, value, rank=rank)
        api.observe(carried(step))
    assert shown("kvserving:worker_cache_saved_tokens_total") == 48
    assert shown("kvserving:worker_cache_used_bytes") == 320


def test_the_log_line_has_an_intervals_counts_and_its_last_levels() -> None:
    interval = WorkerCacheStats(carried(_step(16, {0: 100, 1: 10})))
    interval.aggregate(WorkerCacheStats(carried(_step(32, {1: 20}))))
    assert interval.reduce() == {"worker_cache_loaded_tokens l1": 48, "worker_cache_used_bytes": 120}
    interval.reset()
    assert interval.is_empty()
    assert interval.reduce() == {}


def _step(loaded: int, used: dict[int, int]) -> WorkerCacheStats:
    stats = WorkerCacheStats()
    stats.add(names.LOADED, loaded, ("l1",))
    for rank, value in used.items():
        stats.level(names.USED, value, rank=rank)
    return stats


def test_a_level_of_nothing_is_news() -> None:
    stats = WorkerCacheStats()
    assert stats.is_empty()
    stats.level(names.TRACKED, 0)
    assert not stats.is_empty()


def test_every_series_of_the_tiers_is_there_from_the_start_and_again_in_the_same_process() -> None:
    from kvserving_connector.vllm.tier import SharedStoreTier

    for _ in range(2):
        api = metrics()
    stats = WorkerCacheStats()
    stats.add(names.SAVED, 1)
    api.observe(carried(stats))
    assert shown("kvserving:worker_cache_saved_tokens_total") == 1
    ours = {metric.name for metric in REGISTRY.collect() if metric.samples}
    assert {*SharedStoreTier.build_metric_definitions({}), *(one.name for one in series.OF_LOADS)} <= ours
    for tier in ("l1", "l2"):
        for name in ("promised", "loaded", "failed"):
            assert shown(f"kvserving:worker_cache_{name}_tokens_total", tier=tier) == 0


def test_decisions_about_loads_have_the_series_of_the_native_tier() -> None:
    api, model = metrics(), CostModel()
    model.observe_prefill(1000, 0.5)
    stats = WorkerCacheStats()
    stats.add_loads(LoadTally(skipped_tokens=collections.Counter({Tier.L2: 96}), timeouts=2), model)
    api.observe(carried(stats))
    assert shown("kvserving:tier_tokens_skipped_total", tier="l2") == 96
    assert shown("kvserving:tier_timeouts_total") == 2
    assert shown("kvserving:prefill_seconds_per_token") == pytest.approx(0.0005)


@pytest.mark.parametrize(
    ("name", "labels", "named"),
    [
        ("kvserving:worker_cache_saved", (), "kvserving:worker_cache_saved'"),
        (names.TRACKED, (), "no counter"),
        (names.PROMISED, (), "l1, l2"),
        (names.PROMISED, ("l3",), "l3"),
        (names.LOST, ("l1",), "none"),
    ],
)
def test_what_the_api_server_could_not_show_is_refused_where_it_is_counted(
    name: str, labels: tuple[str, ...], named: str
) -> None:
    stats = WorkerCacheStats()
    with pytest.raises(ValueError, match=named):
        stats.add(name, 1, labels)
    assert stats.is_empty()


def test_a_counter_has_no_level() -> None:
    with pytest.raises(ValueError, match="no gauge"):
        WorkerCacheStats().level(names.SAVED, 1)
