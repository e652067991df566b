"""MultiConnector in vLLM's own scheduler, with children that answer as they are told."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

vllm = pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.multi_support import (  # noqa: E402
    BLOCK,
    child,
    connector,
    finish,
    inner,
    request,
    scheduler,
    step,
)

from kvserving_connector import compat  # noqa: E402

pytestmark = pytest.mark.engine


def blocks() -> Any:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks

    return KVCacheBlocks(((),))


def answer(multi: Any, request_id: str, *tokens: int | None) -> None:
    for one, count in zip(multi._connectors, tokens, strict=True):
        one.answers[request_id] = (count, bool(count))


@pytest.mark.parametrize(("slow", "chosen"), [(300, 0), (500, 1)])
def test_a_fast_tier_of_weight_4_beats_a_3_times_longer_hit_and_loses_to_a_5_times_longer_one(
    slow: int, chosen: int
) -> None:
    multi = connector([child("Scripted", load_weight=4), child("Scripted")])
    one = request("r", 600)
    answer(multi, "r", 100, slow)
    tokens = (100, slow)[chosen]
    assert multi.get_num_new_matched_tokens(one, 0) == (tokens, True)
    multi.update_state_after_alloc(one, blocks(), tokens)
    assert [c.allocated for c in multi._connectors] == [[("r", tokens if index == chosen else 0)] for index in range(2)]


def test_equal_scores_go_to_the_first_in_the_configuration() -> None:
    multi = connector([child("Scripted"), child("Scripted")])
    answer(multi, "r", 64, 64)
    multi.get_num_new_matched_tokens(request("r", 600), 0)
    assert multi._requests_to_connector == {"r": 0}


def test_a_question_that_is_asked_again_leaves_no_earlier_choice() -> None:
    multi = connector([child("Scripted"), child("Scripted", defer="hard")])
    one = request("r", 600)
    answer(multi, "r", 64, 0)
    assert multi.get_num_new_matched_tokens(one, 0) == (64, True)
    answer(multi, "r", 64, None)
    assert multi.get_num_new_matched_tokens(one, 0) == (None, False)
    assert multi._requests_to_connector == {}
    answer(multi, "r", 32, 48)
    assert multi.get_num_new_matched_tokens(one, 0) == (48, True)
    assert multi._requests_to_connector == {"r": 1}
    answer(multi, "r", 0, 0)
    assert multi.get_num_new_matched_tokens(one, 0) == (0, False)
    multi.update_state_after_alloc(one, blocks(), 0)
    assert [c.allocated for c in multi._connectors] == [[("r", 0)], [("r", 0)]]


def test_a_preempted_request_is_asked_about_again_and_loads_from_another_child() -> None:
    """With vLLM's scheduler: the first choice must not outlive the preemption."""
    engine = scheduler([child("Scripted"), child("Scripted")], blocks=9)
    multi = engine.connector
    first = request("a", 3 * BLOCK)
    multi._connectors[0].answers["a"] = (2 * BLOCK, False)
    engine.add_request(first)
    step(engine)
    assert multi._connectors[0].allocated[-1] == ("a", 2 * BLOCK)
    engine.reset_prefix_cache(reset_running_requests=True)
    assert first.num_preemptions == 1
    multi._connectors[0].answers["a"] = (0, False)
    multi._connectors[1].answers["a"] = (BLOCK, False)
    step(engine)
    assert multi._connectors[0].allocated[-1] == ("a", 0)
    assert multi._connectors[1].allocated[-1] == ("a", BLOCK)


def test_a_request_without_free_blocks_is_asked_about_every_step_and_counted_once() -> None:
    engine = scheduler([child("Scripted")], blocks=5)
    multi = engine.connector
    engine.add_request(request("a", 3 * BLOCK))
    step(engine)
    waiting = request("b", 3 * BLOCK)
    multi._connectors[0].answers["b"] = (2 * BLOCK, False)
    engine.add_request(waiting)
    for _ in range(3):
        step(engine)
    assert len([one for one, _ in multi._connectors[0].asked if one == "b"]) >= 3
    finish(engine, "a")
    step(engine)
    assert multi._connectors[0].allocated[-1] == ("b", 2 * BLOCK)
    counts = counted(engine)
    assert counts["queries"] == {"Scripted": 2}
    assert counts["hits"] == {"Scripted": 1}
    assert counts["hit_tokens"] == {"Scripted": 2 * BLOCK}
    assert counts["misses"] == {"Scripted": 1}


def counted(engine: Any) -> dict[str, dict[str, int]]:
    """All counts that the engine's steps have published."""
    from kvserving_connector.vllm.multi_stats import SelectionStats

    total = SelectionStats()
    for stats in engine.published:
        if stats and "selection" in stats:
            total.aggregate(SelectionStats(data=inner(stats["selection"])))
    return total.data


def test_a_lookup_holds_a_request_in_the_scheduler_only_for_the_patience(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = scheduler([child("Scripted"), child("OffloadingConnector")])
    multi = engine.connector
    now = [100.0]
    monkeypatch.setattr(multi._waits, "_clock", lambda: now[0])
    one = request("a", 4 * BLOCK)
    multi._connectors[0].answers["a"] = (BLOCK, False)
    multi._connectors[1].answers["a"] = (None, False)
    engine.add_request(one)
    for _ in range(5):
        assert step(engine).num_scheduled_tokens == {}
    now[0] += 29
    assert step(engine).num_scheduled_tokens == {}
    now[0] += 2
    assert step(engine).num_scheduled_tokens == {"a": 3 * BLOCK}
    assert told(caplog) == ["KVServing: request a is not held after 30 s without an answer of OffloadingConnector"]
    assert multi._connectors[0].allocated == [("a", BLOCK)]
    assert multi._connectors[1].allocated == [("a", 0)]
    assert len(multi._waits) == 0
    # From now on its "not yet" may mean that it still saves blocks of the request.
    engine.reset_prefix_cache(reset_running_requests=True)
    for _ in range(6):
        now[0] += 60
        assert step(engine).num_scheduled_tokens == {}
    multi._connectors[1].answers["a"] = (2 * BLOCK, False)
    step(engine)
    assert multi._connectors[1].allocated[-1] == ("a", 2 * BLOCK)


def test_a_child_of_an_unknown_class_is_always_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    multi = connector([child("Scripted"), child("Scripted")])
    now = [100.0]
    multi._waits._clock = lambda: now[0]
    answer(multi, "r", 64, None)
    one = request("r", 600)
    for _ in range(4):
        assert multi.get_num_new_matched_tokens(one, 0) == (None, False)
        now[0] += 40
    assert told(caplog) == ["KVServing: request r has waited for more than 30 s for Scripted-2"]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "vllm.kvserving"]


def test_a_tier_that_ends_its_lookups_itself_is_waited_for_beyond_the_patience() -> None:
    multi = connector([child("Scripted"), child("TieredOffloadConnector")])
    now = [100.0]
    multi._waits._clock = lambda: now[0]
    answer(multi, "r", 64, None)
    one = request("r", 600)
    for _ in range(4):
        assert multi.get_num_new_matched_tokens(one, 0) == (None, False)
        now[0] += 40
    answer(multi, "r", 64, 512)
    assert multi.get_num_new_matched_tokens(one, 0) == (512, True)


@pytest.mark.parametrize("order", [("NixlConnector", "OffloadingConnector"), ("OffloadingConnector", "NixlConnector")])
def test_a_prefilled_request_loads_from_nixl_whatever_the_weights_and_without_waiting(
    order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.9")
    nixl = child("NixlConnector", module=None, kv_role="kv_consumer", kv_buffer_device="cpu", load_weight=0.001)
    tier = child("OffloadingConnector", load_weight=1_000_000)
    multi = connector([nixl if name == "NixlConnector" else tier for name in order])
    position = order.index("NixlConnector")
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": "p",
        "remote_request_id": "x",
        "remote_host": "127.0.0.8",
        "remote_port": 1,
        "tp_size": 1,
    }
    for tokens in (None, 30, 0):
        one = request(f"r{tokens}", 2 * BLOCK, dict(params))
        multi.on_new_request(one)
        multi._connectors[1 - position].answers[one.request_id] = (tokens, bool(tokens))
        assert multi.get_num_new_matched_tokens(one, 0) == (2 * BLOCK, True)
        assert multi._requests_to_connector[one.request_id] == position
    plain = request("plain", 2 * BLOCK)
    multi.on_new_request(plain)
    multi._connectors[1 - position].answers["plain"] = (16, True)
    assert multi.get_num_new_matched_tokens(plain, 0) == (16, True)
    assert multi._requests_to_connector["plain"] == 1 - position


def test_what_the_operator_renders_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.9")
    rendered = json.loads(
        '{"kv_connector":"MultiConnector","kv_connector_module_path":"kvserving_connector.vllm.multi",'
        '"kv_role":"kv_both","kv_connector_extra_config":{"connectors":['
        '{"kv_connector":"NixlConnector","kv_connector_module_path":"kvserving_connector.vllm.nixl",'
        '"kv_role":"kv_consumer","kv_buffer_device":"cpu","kv_connector_extra_config":'
        '{"kv_lease_duration":30,"load_weight":1000000}},'
        '{"kv_connector":"Scripted","kv_connector_module_path":"tests.connector.multi_children","kv_role":"kv_both",'
        '"kv_connector_extra_config":{"load_weight":1,"cpu_bytes_to_use":1024,"eviction_policy":"lru"}}]},'
        '"kv_load_failure_policy":"fail","kv_buffer_device":"cpu"}'
    )
    multi = connector(rendered["kv_connector_extra_config"]["connectors"])
    assert type(multi).__module__ == rendered["kv_connector_module_path"]
    assert [(one.label, one.load_weight, one.transfers) for one in multi._children] == [
        ("NixlConnector", 1_000_000.0, True),
        ("Scripted", 1.0, False),
    ]


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ([child("Scripted", load_weight=0)], r"connectors\[0\] \(Scripted\)\.kv_connector_extra_config\.load_weight=0"),
        ([child("Scripted"), child("Scripted", load_weight="1")], r"connectors\[1\].*load_weight='1'"),
        ([child("Scripted", defer="perhaps")], r"connectors\[0\].*defer='perhaps'"),
        ([{**child("Scripted"), "engine_id": "x"}], r"connectors\[0\] \(Scripted\)\.engine_id must be left out"),
        ([], r"connectors=\[\] must list"),
        (
            [child("TieredOffloadConnector"), child("Scripted"), child("TieredOffloadConnector")],
            r"connectors\[2\] \(TieredOffloadConnector\): a second L1 .*connectors\[0\]",
        ),
        (
            [child("OffloadingConnector"), child("OffloadingConnector", module=None)],
            r"connectors\[1\] \(OffloadingConnector\): two classes of one name \(tests.*and vllm\.",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused_at_start_with_their_place(children: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        connector(children, hybrid=False)


def test_a_child_without_hybrid_memory_is_named_with_both_remedies() -> None:
    children = [child("Scripted"), child("WithoutHybrid"), child("WithoutHybrid")]
    with pytest.raises(ValueError, match="--disable-hybrid-kv-cache-manager, or take what lacks it out of") as error:
        connector(children, hybrid=True)
    for name in ("connectors[1] (WithoutHybrid)", "connectors[2] (WithoutHybrid)"):
        assert name in str(error.value)
    assert "(Scripted)" not in str(error.value)
    connector(children, hybrid=False)
    with pytest.raises(ValueError, match=r"\(WithoutHybrid\).*recurrent layers do not run without it"):
        connector(children, hybrid=False, model=SimpleNamespace(is_hybrid=True))
    connector([child("Scripted")], hybrid=False, model=SimpleNamespace(is_hybrid=True))


def test_a_vllm_without_two_phase_allocation_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    band, reason = compat._band("0.23.0", True, "m:NixlPullConnector", False, True, True)
    old = dataclasses.replace(compat.probe(), band=band, reason=reason, two_phase_allocation=False)
    monkeypatch.setattr(compat, "probe", lambda: old)
    found = importlib.util.find_spec("kvserving_connector.vllm.multi")
    assert found is not None
    assert found.origin is not None
    spec = importlib.util.spec_from_file_location("refused_multi", found.origin)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=r"vLLM 0\.23\.0 lacks two-phase block allocation; use vLLM 0\.24 or newer"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "refused_multi" not in sys.modules


def test_both_forms_of_the_preemption_call_reach_every_child() -> None:
    from vllm.v1.core.sched.output import SchedulerOutput

    multi = connector([child("Scripted"), child("Scripted")])
    metadata = multi.build_connector_meta(SchedulerOutput.make_empty())
    multi.handle_preemptions(metadata)
    multi.handle_preemptions({"r1"})
    for index, one in enumerate(multi._connectors):
        assert one.preempted == [metadata.metadata[index], {"r1"}]


def test_the_block_pool_is_bound_to_every_child_and_both_finish_hooks_forget_the_request() -> None:
    engine = scheduler([child("Scripted"), child("Scripted")])
    multi = engine.connector
    pool = engine.kv_cache_manager.block_pool
    assert [one.bound for one in multi._connectors] == [[pool], [pool]]
    for all_groups in (False, True):
        one = request("r", 3 * BLOCK)
        answer(multi, "r", BLOCK, 0)
        multi.get_num_new_matched_tokens(one, 0)
        multi.update_state_after_alloc(one, blocks(), BLOCK)
        assert multi._selection.remembered == 1
        if all_groups:
            multi.request_finished_all_groups(one, ([1],))
        else:
            multi.request_finished(one, [1])
        assert multi._selection.remembered == 0
        assert multi._requests_to_connector == {}
        assert len(multi._waits) == 0
    assert [one.finished for one in multi._connectors] == [["r", "r"], ["r", "r"]]
