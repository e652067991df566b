"""Requests that go away, a cache that is reset, an engine that comes to rest."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.worker_cache.cases import BLOCK, check_answers, prepare, prompt
from tests.connector.worker_cache.conftest import Start
from tests.connector.worker_cache.settings import store

from kvserving_connector.vllm.worker_cache import stats

pytestmark = pytest.mark.engine


def test_a_reset_forgets_l1_on_all_ranks_and_leaves_l2(start: Start, tmp_path: Path) -> None:
    tokens = prompt(10 * BLOCK)
    engine = start(slots=(40, 40), **store(tmp_path))
    prepare(engine, tokens, 10 * BLOCK)
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert engine.tracked() == frozenset()
    engine.step()
    assert [len(rank.pool) for rank in engine.ranks] == [0, 0]
    assert engine.serve([*tokens, 1]) == 10 * BLOCK
    assert engine.counted(stats.LOADED, "l2") == 10 * BLOCK
    check_answers(engine)
    engine.check_over()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@pytest.mark.parametrize("slots", [(40, 40), (40, 6), (6,)], ids=["with room", "one waits for room", "waits for room"])
def test_a_save_under_way_when_the_cache_is_reset_is_not_tracked(
    start: Start, slots: tuple[int, ...], steps: int
) -> None:
    tokens, other = prompt(10 * BLOCK), prompt(10 * BLOCK, 1)
    engine = start(slots=slots, lag=(0, 2))
    engine.serve(other)
    engine.add(tokens)
    for _ in range(steps + 1):
        engine.step()
    engine.connector.reset_cache()
    engine.settle()
    engine.check_tracked()
    assert engine.tracked() == frozenset()
    assert all(engine.keys(other)[0] not in rank.pool.held() for rank in engine.ranks)
    engine.check_over()


def test_a_save_that_was_reported_but_not_applied_when_the_cache_was_reset_is_not_tracked(start: Start) -> None:
    tokens = prompt(10 * BLOCK)
    engine = start(slots=(40, 40), delay=1)
    engine.add(tokens, answer=2)
    engine.step()
    assert [len(rank.pool) for rank in engine.ranks] == [10, 10]
    assert engine.reports == []
    engine.connector.reset_cache()
    engine.settle()
    assert engine.tracked() == frozenset()
    engine.check_tracked()
    engine.check_over()


@pytest.mark.parametrize("idle", [True, False], ids=["since 0.31", "before"])
def test_a_save_that_waits_for_room_when_the_cache_is_reset_gives_its_blocks_back(start: Start, idle: bool) -> None:
    engine = start(slots=(16,), blocks=40)
    engine.ranks[0].saves_when_idle = idle
    engine.serve(prompt(16 * BLOCK))
    engine.flood()
    engine.add(prompt(18 * BLOCK, 1))
    engine.step()
    assert engine.connector.scheduler_context.held
    engine.connector.reset_cache()
    # Needs nearly all blocks that there are.
    engine.add(prompt(37 * BLOCK, 2))
    engine.settle()
    check_answers(engine)
    engine.check_over()


def test_a_load_under_way_when_the_cache_is_reset_ends_well(start: Start) -> None:
    tokens = prompt(10 * BLOCK)
    engine = start(slots=(40, 40), lag=(2, 3))
    prepare(engine, tokens, 10 * BLOCK)
    engine.add([*tokens, 1], answer=3)
    engine.step()
    engine.connector.reset_cache()
    # Others take the slots as soon as they can.
    engine.add(prompt(30 * BLOCK, 1))
    engine.settle()
    assert engine.counted(stats.LOADED, "l1") == 10 * BLOCK
    check_answers(engine)
    engine.check_tracked()
    engine.check_over()


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_blocks_of_a_request_that_went_away_are_not_reused_while_they_are_filled(start: Start, steps: int) -> None:
    tokens = prompt(10 * BLOCK)
    engine = start(slots=(40, 40), lag=(0, 3), blocks=22)
    prepare(engine, tokens, 10 * BLOCK)
    request = engine.add([*tokens, 1])
    for _ in range(steps):
        engine.step()
    engine.abort(request)
    # Needs all blocks that there are.
    engine.add(prompt(20 * BLOCK, 1), answer=8)
    engine.settle()
    check_answers(engine)
    engine.check_over()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_blocks_of_a_request_that_went_away_are_not_reused_while_they_are_saved(start: Start, steps: int) -> None:
    tokens = prompt(10 * BLOCK)
    engine = start(slots=(40, 40), lag=(0, 3), blocks=22)
    request = engine.add(tokens, answer=30)
    for _ in range(steps):
        engine.step()
    engine.abort(request)
    engine.add(prompt(20 * BLOCK, 1), answer=8)
    engine.settle()
    assert set(engine.keys(tokens)) <= engine.tracked()
    engine.preempt()
    assert engine.serve([*tokens, 1]) == 10 * BLOCK
    check_answers(engine)
    engine.check_over()


def test_ranks_are_not_asked_for_a_request_that_went_away_before_they_heard_of_it(start: Start, tmp_path: Path) -> None:
    engine = start(**store(tmp_path))
    request = engine.stranger(prompt(10 * BLOCK))
    assert engine.connector.get_num_new_matched_tokens(request, 0) == (None, False)
    engine.connector.request_finished(request, [])
    engine.step()
    assert engine.metadata[-1].probes == engine.metadata[-1].releases == []
    engine.check_over()


@pytest.mark.parametrize("offload", ["eager", "lazy"])
@pytest.mark.parametrize("slots", [(10, 10), (200, 200)], ids=["small", "large"])
def test_an_engine_without_requests_comes_to_rest(start: Start, offload: str, slots: tuple[int, ...]) -> None:
    engine = start(slots=slots, lag=(0, 2), blocks=100, offload=offload)
    for seed in range(4):
        engine.add(prompt(20 * BLOCK, seed), answer=3)
    engine.until(lambda: not engine.scheduler.requests)
    steps = len(engine.metadata)
    engine.settle()
    assert len(engine.metadata) - steps < 12
    assert not engine.scheduler.has_requests()
    assert not engine.connector.has_pending_push_work()
    assert not engine.connector.has_pending_block_frees()
    check_answers(engine)
    engine.check_over()


def test_lazily_nothing_is_saved_before_the_engine_needs_the_blocks(start: Start) -> None:
    engine = start(slots=(300,), blocks=200, batch=64, offload="lazy")
    tokens = prompt(20 * BLOCK)
    engine.serve(tokens)
    assert engine.tracked() == frozenset()
    for seed in range(1, 11):
        engine.serve(prompt(19 * BLOCK, seed))
    # The engine gives up a prompt from its end on; what it still has itself is not loaded.
    ((first, count),) = engine.tracked(tokens)
    assert first + count == 20
    assert 0 < engine.serve([*tokens, 1]) <= count * BLOCK
    check_answers(engine)
    engine.check_tracked()
    engine.check_over()


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_lazily_no_block_is_given_up_before_it_is_saved(start: Start, lag: int) -> None:
    engine = start(slots=(300,), lag=(lag,), blocks=100, batch=128, offload="lazy")
    old, new = prompt(60 * BLOCK), prompt(70 * BLOCK, 1)
    engine.serve(old)
    engine.serve(new)
    # What the engine still has is the beginning.
    ((first, count),) = engine.tracked(old)
    assert first + count == 60
    assert count >= 30
    assert engine.serve([*old, 1]) >= 30 * BLOCK
    check_answers(engine)
    engine.check_over()


def test_lazily_of_two_blocks_with_one_hash_one_is_saved(start: Start) -> None:
    engine = start(slots=(300,), blocks=60, offload="lazy")
    tokens = prompt(10 * BLOCK)
    # The last block of a prompt is computed by each: an engine has to compute one token at least.
    for _ in range(2):
        engine.add(tokens)
    engine.settle()
    engine.serve(prompt(45 * BLOCK, 1))
    saved = [part.key for one in engine.metadata for save in one.saves for span in save.spans for part in span.parts]
    assert len(saved) == len(set(saved)) >= 10
    assert engine.keys(tokens)[-1] in saved
    check_answers(engine)
    engine.check_tracked()
    engine.check_over()


def test_what_another_connector_loads_for_the_step_is_saved_with_a_later_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(slots=(40,))
    build = engine.connector.build_connector_meta

    def with_loads(output: object) -> object:
        monkeypatch.setattr(output, "has_sync_kv_loads", len(engine.metadata) == 0, raising=False)
        return build(output)

    monkeypatch.setattr(engine.connector, "build_connector_meta", with_loads)
    tokens = prompt(10 * BLOCK)
    engine.add(tokens, answer=2)
    engine.step()
    assert engine.metadata[0].saves == []
    engine.settle()
    assert engine.tracked(tokens) == ((0, 10),)
    check_answers(engine)
    engine.check_over()


@pytest.mark.parametrize("before", ["saved", "loaded", "computed again"])
@pytest.mark.parametrize("batch", [64, 1024], ids=["in pieces", "at once"])
def test_of_a_prompt_the_end_leaves_first(start: Start, before: str, batch: int) -> None:
    engine = start(slots=(32,), batch=batch, loads="never" if before == "computed again" else "always")
    old, new = prompt(20 * BLOCK), prompt(20 * BLOCK, 1)
    engine.serve(old)
    if before != "saved":
        engine.flood()
        engine.serve(old)
    engine.serve(new)
    ((first, kept),) = engine.tracked(old)
    assert (first, engine.tracked(new)) == (0, ((0, 20),))
    assert 0 < kept <= 12
    check_answers(engine)


def test_what_was_used_last_stays(start: Start) -> None:
    engine = start(slots=(48,))
    often, seldom = prompt(20 * BLOCK), prompt(20 * BLOCK, 1)
    for tokens in (often, seldom, often):
        engine.flood()
        engine.serve(tokens)
    engine.serve(prompt(20 * BLOCK, 2))
    assert engine.tracked(often) == ((0, 20),)
    assert engine.tracked(seldom) != ((0, 20),)
    engine.check_tracked()


def test_a_save_that_waits_for_room_ends_where_idle_steps_ask_for_none(start: Start) -> None:
    engine = start(slots=(8,), blocks=64)
    engine.ranks[0].saves_when_idle = False
    for seed in range(6):
        engine.serve(prompt(7 * BLOCK + 1, seed))
        engine.settle()
    engine.check_over()


def test_a_prefix_that_the_engine_has_itself_counts_as_used(start: Start) -> None:
    engine = start(slots=(48,))
    often = prompt(8 * BLOCK)
    engine.serve([*often, 1])
    for seed in range(1, 13):
        engine.serve(prompt(20 * BLOCK, seed))
        engine.serve([*often, seed])
    assert engine.tracked(often) == ((0, 8),)
    engine.flood()
    assert engine.serve([*often, 99]) == 8 * BLOCK
    check_answers(engine)
