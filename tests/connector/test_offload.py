"""``TieredOffloadConnector``: settings, both tiers with real bytes, loads by cost, timeouts, statistics."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.offload_support import BLOCK, CHUNK, SILENT, Engine, cache_config, configuration
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import SchedulerOffloadConfig
from vllm.lora.request import LoRARequest
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, SlidingWindowSpec

from kvserving_connector.core import cost
from kvserving_connector.vllm import series
from kvserving_connector.vllm.offload import TieredOffloadConnector

pytestmark = pytest.mark.engine
L1 = {"load_weight": 1, "cpu_bytes_to_use": 64 * 4096, "eviction_policy": "lru"}
LOADS_WITHIN_STEP = "sync_load_budget_bytes" in SchedulerOffloadConfig._fields
PROMPT = list(range(100, 100 + 5 * BLOCK + 3))
OTHER = list(range(500, 500 + 5 * BLOCK + 3))
Start = Callable[..., Engine]


def with_l2(tier: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The settings as the operator renders them with a store."""
    return {
        **L1,
        "spec_name": "TieringOffloadingSpec",
        "loads": "auto",
        "load_timeout_s": 30,
        "secondary_tiers": [tier],
        **more,
    }


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[Engine] = []

    def engine(extra: dict[str, Any]) -> Engine:
        engines.append(Engine(extra, f"test-{uuid.uuid4().hex}"))
        return engines[-1]

    yield engine
    for one in engines:
        one.stop()
        assert not list(Path("/dev/shm").glob(f"vllm_offload_{one.name}*"))


def tokens_loaded(engine: Engine, tier: str) -> float:
    return engine.stats().get(series.TOKENS.name, {}).get((tier,), 0)


def test_a_prompt_comes_back_from_l1_and_is_counted(start: Start) -> None:
    engine = start(L1)
    assert engine.serve(PROMPT) == 0
    assert engine.serve(OTHER) == 0
    engine.stats()
    assert engine.serve(PROMPT) == 5 * BLOCK
    counted = engine.stats()
    assert counted[series.LOADS.name] == {("l1",): 1}
    assert counted[series.TOKENS.name] == {("l1",): 5 * BLOCK}
    assert counted[series.SECONDS.name][("l1",)] > 0
    assert counted[series.LOAD_COST.name][("l1",)] > 0
    assert counted["vllm:kv_offload_load_bytes"] == {(): 5 * CHUNK}
    assert series.LOADS.name not in engine.stats()


@pytest.mark.parametrize(
    ("more", "others", "within_step"),
    [({}, 0, True), ({}, 1, False), ({"sync_load_budget_bytes": 0}, 0, False)],
    ids=["alone", "beside-another", "ruled-out"],
)
def test_a_request_without_others_is_loaded_within_its_step_where_vllm_can(
    start: Start, more: dict[str, Any], others: int, within_step: bool
) -> None:
    engine = start({**L1, **more})
    engine.serve(PROMPT)
    engine.stats()
    for _ in range(others):
        engine.request(OTHER)
    assert engine.serve(PROMPT) == 5 * BLOCK
    assert engine.loads_async is not (within_step and LOADS_WITHIN_STEP)
    assert tokens_loaded(engine, "l1") == 5 * BLOCK


def test_a_model_with_windows_is_never_loaded_within_a_step() -> None:
    cache = cache_config()
    (full,) = [group.kv_cache_spec for group in cache.kv_cache_groups]
    shape = {name: getattr(full, name) for name in ("block_size", "num_kv_heads", "head_size", "dtype")}
    window = SlidingWindowSpec(**shape, sliding_window=4 * BLOCK)
    budgets = []
    for groups in (
        [KVCacheGroupSpec(["a", "b"], full)],
        [KVCacheGroupSpec(["a"], full), KVCacheGroupSpec(["b"], window)],
    ):
        cache.kv_cache_groups = groups
        settings = configuration({**L1, "cpu_bytes_to_use": 2**20}, f"test-{uuid.uuid4().hex}")
        connector = KVConnectorFactory.create_connector(settings, KVConnectorRole.SCHEDULER, cache)
        budgets.append(getattr(connector.connector_scheduler.config, "sync_load_budget_bytes", 0))
        connector.shutdown()
    assert budgets[1] == 0
    assert (budgets[0] > 0) is LOADS_WITHIN_STEP


def test_only_the_shared_beginning_is_loaded(start: Start) -> None:
    engine = start(L1)
    engine.serve(PROMPT)
    assert engine.serve(PROMPT[: 2 * BLOCK + 5] + OTHER) == 2 * BLOCK


def test_l1_evicts_and_stays_right(start: Start) -> None:
    engine = start({**L1, "cpu_bytes_to_use": 8 * 4096})
    prompts = [[1000 * number + token for token in range(3 * BLOCK + 1)] for number in range(6)]
    for _ in range(3):
        for prompt in prompts:
            assert engine.serve(prompt) in (0, BLOCK, 2 * BLOCK, 3 * BLOCK)
    assert engine.serve(prompts[-1]) == 3 * BLOCK


def test_another_engine_loads_from_the_shared_tier(start: Start, tmp_path: Path) -> None:
    tier = {"type": "fs", "root_dir": str(tmp_path)}
    first = start(with_l2(tier))
    first.serve(PROMPT)
    first.until(lambda: not first.scheduler.has_pending_push_work() and list(tmp_path.rglob("*.bin")))
    second = start(with_l2(tier))
    assert second.serve(PROMPT) == 5 * BLOCK
    assert tokens_loaded(second, "l2") == 5 * BLOCK
    assert second.serve(PROMPT) == 5 * BLOCK
    assert tokens_loaded(second, "l1") == 5 * BLOCK


def test_an_adapter_that_was_replaced_in_place_finds_nothing_of_the_old_one(start: Start, tmp_path: Path) -> None:
    """vLLM's block hashes know an adapter by its name and path alone."""
    tier = {
        "type": "SharedStoreTier",
        "module_path": "kvserving_connector.vllm.tier",
        "urls": [f"file://{tmp_path}/l2"],
    }
    folder = tmp_path / "adapter"
    folder.mkdir()
    weights = folder / "adapter_model.safetensors"
    adapter = LoRARequest("one", 1, str(folder))

    def loaded(text: str, adapter: LoRARequest = adapter) -> int:
        weights.write_text(text)
        engine = start(with_l2(tier, loads="always"))
        found = engine.serve(PROMPT, adapter)
        engine.until(lambda: not engine.scheduler.connector_scheduler.manager.has_pending_work())
        return found

    assert [loaded("first"), loaded("first")] == [0, 5 * BLOCK]
    assert [loaded("second"), loaded("second")] == [0, 5 * BLOCK]
    assert loaded("first") == 5 * BLOCK
    assert start(with_l2(tier, loads="always")).serve(PROMPT) == 0
    unknown = LoRARequest("one", 1, str(tmp_path / "not there"))
    assert [loaded("first", unknown), loaded("first", unknown)] == [0, 0]


@pytest.mark.parametrize(("loads", "expected"), [("never", 0), ("always", 5 * BLOCK)])
def test_loads_rules_the_shared_tier_and_stores_go_on(start: Start, tmp_path: Path, loads: str, expected: int) -> None:
    tier = {"type": "fs", "root_dir": str(tmp_path)}
    first = start(with_l2(tier, loads=loads))
    first.serve(PROMPT)
    first.until(lambda: not first.scheduler.has_pending_push_work() and list(tmp_path.rglob("*.bin")))
    second = start(with_l2(tier, loads=loads))
    teach(second, "l2", seconds=100.0)
    assert second.serve(PROMPT) == expected
    # L1 has it now in either case, and is not ruled by it.
    assert second.serve(PROMPT) == 5 * BLOCK


def test_loads_rules_l1_where_there_is_no_shared_tier(start: Start) -> None:
    never = start({**L1, "loads": "never"})
    assert [never.serve(PROMPT) for _ in range(2)] == [0, 0]
    always = start({**L1, "loads": "always"})
    teach(always, "l1", seconds=100.0)
    assert [always.serve(PROMPT) for _ in range(9)] == [0] + [5 * BLOCK] * 8


def teach(engine: Engine, tier: str, seconds: float) -> None:
    """Let the engine believe that the tier takes so long and that it computes at once."""
    model = engine.scheduler._ledger.model
    for _ in range(40):
        for tokens in (BLOCK, 5 * BLOCK, len(PROMPT) - 1):
            model.observe_load(tier, tokens, seconds)
            model.observe_prefill(tokens + 1, 0.01)


def test_a_hit_that_is_slower_than_computing_is_left_and_counted(start: Start) -> None:
    engine = start(L1)
    engine.serve(PROMPT)
    teach(engine, "l1", seconds=100.0)
    engine.stats()
    loaded = [engine.serve(PROMPT) for _ in range(cost.FIRST_DWELL + 4)]
    assert loaded[-4:] == [0] * 4
    counted = engine.stats()
    skipped = loaded.count(0)
    assert counted[series.SKIPPED.name] == {("l1",): skipped}
    assert counted[series.SKIPPED_TOKENS.name] == {("l1",): skipped * 5 * BLOCK}


def test_a_slow_shared_tier_is_not_asked_and_counted(start: Start, tmp_path: Path) -> None:
    engine = start(with_l2({"type": "fs", "root_dir": str(tmp_path)}))
    teach(engine, "l2", seconds=100.0)
    for number in range(cost.FIRST_DWELL + 2):
        assert engine.serve([number * 1000 + token for token in range(len(PROMPT))]) == 0
    engine.stats()
    assert engine.serve(OTHER) == 0
    counted = engine.stats()
    assert counted[series.SKIPPED.name] == {("l2",): 1}
    asked = counted["vllm:kv_offload_tiering_chunk_queries"]
    assert [tier for (tier,) in asked if "fs" in tier] == []


def test_a_question_asked_again_is_the_same_decision(start: Start) -> None:
    engine = start(L1)
    engine.serve(PROMPT)
    teach(engine, "l1", seconds=100.0)
    first = engine.request(PROMPT)
    answers = {engine.ask(first) for _ in range(10 * cost.FIRST_DWELL)}
    assert answers == {5 * BLOCK}, "asking a request again was taken for new evidence"


def test_a_tier_that_never_answers_is_given_up_and_nobody_else_waits_for_it(start: Start) -> None:
    engine = start(with_l2(SILENT, load_timeout_s=0.3))
    assert engine.ask(engine.request(PROMPT)) == 0
    # The next request would wait for the same read of the same prompt.
    request = engine.request(PROMPT)
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    assert engine.stats()[series.TIMEOUTS.name] == {(): 2}


def test_transfers_under_way_hold_a_request_back_after_the_timeout_too(start: Start) -> None:
    """Blocks that are still read must not be given away: vLLM's own wait is never cut short."""
    engine = start(with_l2(SILENT, load_timeout_s=0.3))
    request = engine.request(PROMPT)
    assert engine.ask(request) == 0
    engine.scheduler.connector_scheduler._req_status[request.request_id].transfer_jobs.add(99)
    assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (None, False)
    assert not request.skip_reading_prefix_cache


def test_settings_are_read_and_the_caller_s_stay_untouched(start: Start, tmp_path: Path) -> None:
    given = with_l2({"type": "fs", "root_dir": str(tmp_path), "locality": "REMOTE"})
    before = copy.deepcopy(given)
    engine = start(given)
    assert given == before
    assert engine.given == before
    theirs = engine.scheduler._kv_transfer_config.kv_connector_extra_config
    assert not {"load_weight", "loads", "load_timeout_s"} & set(theirs)
    assert theirs["secondary_tiers"][0]["root_dir"] == str(tmp_path)


def test_an_l1_that_holds_no_block_is_refused_with_the_size_it_needs() -> None:
    config = configuration({**L1, "cpu_bytes_to_use": CHUNK - 1})
    with pytest.raises(ValueError, match=rf"cpu_bytes_to_use={CHUNK - 1}.* takes {CHUNK} bytes.*cache.l1.size"):
        TieredOffloadConnector(config, None, cache_config())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cpu_bytes_to_use": None}, "cpu_bytes_to_use=None.*required"),
        ({"cpu_bytes_to_use": True}, "cpu_bytes_to_use=True.*whole number"),
        ({"cpu_bytes_to_use": "64Gi"}, "cpu_bytes_to_use='64Gi'.*whole number"),
        ({"eviction_policy": "fifo"}, "eviction_policy='fifo'.*lru, arc"),
        ({"sync_load_budget_bytes": 1}, "sync_load_budget_bytes=1.*every other request.*remove it"),
        ({"spec_name": "Mine"}, "spec_name='Mine'.*spec_module_path"),
        ({"spec_name": "CPUOffloadingSpec", "secondary_tiers": [{"type": "fs"}]}, "knows no secondary_tiers"),
        ({"secondary_tiers": {"type": "fs"}}, "secondary_tiers=.*must be a list"),
        ({"secondary_tiers": [{"url": "redis://:geheim@host"}]}, r"secondary_tiers\[0\]: it has no type"),
        ({"loads": "sometimes"}, "loads='sometimes'.*auto, always, never"),
        ({"load_timeout_s": 0}, "load_timeout_s=0.*greater than 0"),
        ({"load_timeout_s": "30s"}, "load_timeout_s='30s'.*number of seconds"),
        ({"cpu_byte_to_use": 1}, "cpu_byte_to_use=1.*no such setting.*cpu_bytes_to_use"),
    ],
)
def test_a_wrong_setting_is_refused_with_field_value_reason_and_way_out(change: dict[str, Any], words: str) -> None:
    extra = {name: value for name, value in {**L1, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=words) as refusal:
        TieredOffloadConnector(configuration(extra), None, cache_config())
    assert "geheim" not in str(refusal.value)


def test_a_gpu_engine_gets_vllms_own_specs() -> None:
    from kvserving_connector.core.tier_settings import TierSettings
    from kvserving_connector.vllm import host_worker

    settings = TierSettings.parse(with_l2({"type": "fs", "root_dir": "/x"}))
    assert settings.engine_config()["spec_name"] == "TieringOffloadingSpec"
    assert "spec_module_path" not in settings.engine_config()
    on_host = settings.engine_config(host_worker.MODULE, host_worker.SPECS)
    assert getattr(host_worker, on_host["spec_name"]).__mro__[2].__name__ == "TieringOffloadingSpec"


def test_hybrid_memory_stays_on_and_delivery_is_not_required() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    settings = configuration(L1).kv_transfer_config
    assert KVConnectorFactory.get_connector_class(settings) is TieredOffloadConnector
    assert KVConnectorFactory.supports_hma_config(settings)


def test_the_plugin_registers_the_class_under_its_name() -> None:
    """MultiConnector finds the statistics of its children by class name."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kvserving_connector import plugin

    plugin.register()
    assert KVConnectorFactory.get_connector_class_by_name("TieredOffloadConnector") is TieredOffloadConnector


@pytest.mark.parametrize("named", [True, False], ids=["spec named", "spec left to the tiers"])
def test_counters_of_the_store_are_exported_twice_in_one_process(tmp_path: Path, named: bool) -> None:
    from prometheus_client import REGISTRY, Counter, Gauge, Histogram, generate_latest
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
    from vllm.v1.metrics.prometheus import unregister_vllm_metrics

    kinds = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    tier = {
        "type": "SharedStoreTier",
        "module_path": "kvserving_connector.vllm.tier",
        "urls": [f"file://{tmp_path}"],
    }
    settings = with_l2(tier)
    if not named:
        del settings["spec_name"]
    for _ in range(2):
        unregister_vllm_metrics()
        metrics = TieredOffloadConnector.build_prom_metrics(
            configuration(settings), kinds, ["model_name", "engine"], {0: ["m", "0"]}
        )
    stats = OffloadingConnectorStats()
    stats.increase_counter("kvserving:store_misses", 3, ("absent",))
    stats.increase_counter(series.TIMEOUTS.name, 2)
    metrics.observe(TieredOffloadConnector.build_kv_connector_stats(stats.data).data)
    text = generate_latest(REGISTRY).decode()
    at = 'engine="0",model_name="m"'
    assert f'kvserving:store_misses_total{{{at},reason="absent"}} 3.0' in text
    assert f"kvserving:tier_timeouts_total{{{at}}} 2.0" in text


def test_our_counters_stand_beside_vllms_twice_in_one_process(start: Start) -> None:
    from prometheus_client import REGISTRY, Counter, Gauge, Histogram, generate_latest
    from vllm.v1.metrics.prometheus import unregister_vllm_metrics

    kinds = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
    for _ in range(2):
        unregister_vllm_metrics()
        metrics = TieredOffloadConnector.build_prom_metrics(
            configuration(L1), kinds, ["model_name", "engine"], {0: ["m", "0"]}
        )
    engine = start(L1)
    engine.serve(PROMPT)
    engine.serve(PROMPT)
    payload = TieredOffloadConnector.build_kv_connector_stats(engine.scheduler.get_kv_connector_stats().data)
    metrics.observe(payload.data)
    text = generate_latest(REGISTRY).decode()
    at = 'engine="0",model_name="m"'
    assert f'kvserving:tier_load_tokens_total{{{at},tier="l1"}} {5 * BLOCK}.0' in text
    assert f'kvserving:tier_loads_total{{{at},tier="l2"}} 0.0' in text
    assert f"kvserving:tier_timeouts_total{{{at}}} 0.0" in text
    assert f"vllm:kv_offload_load_bytes_total{{{at}}} {5 * CHUNK}.0" in text
    assert payload.reduce()
