"""Loads and saves that fail, on one rank or on all."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.worker_cache.cases import BLOCK, check_answers, failed, prepare, prompt
from tests.connector.worker_cache.conftest import Start
from tests.connector.worker_cache.engine import Engine
from tests.connector.worker_cache.pages import full, mamba, replayed, sliding

from kvserving_connector import compat
from kvserving_connector.vllm.worker_cache import stats, worker

pytestmark = pytest.mark.engine
by_request = pytest.mark.skipif(
    not compat.probe().transfer_results, reason="this vLLM cannot be told of failed loads by request"
)


def test_a_load_that_fails_on_one_rank_names_that_ranks_blocks_and_the_rest_is_computed(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = prompt(20 * BLOCK)
    engine = start(slots=(40, 40, 40), lag=(1, 2, 3))
    prepare(engine, tokens, 20 * BLOCK)
    engine.ranks[1].broken = {engine.keys(tokens)[12]}
    request = engine.add([*tokens, 1], answer=3)
    engine.step()
    assert engine.invalid_blocks == {engine.table(request)[12]}
    assert f"rank 1 could not load 1 of 20 blocks of request {request}" in caplog.text
    engine.ranks[1].broken = set()
    engine.settle()
    assert engine.loaded[request] == 20 * BLOCK
    assert engine.counted(stats.LOADED, "l1") == 12 * BLOCK
    assert engine.counted(stats.FAILED, "l1") == 8 * BLOCK
    # What was computed instead is there again, on all ranks.
    assert engine.tracked(tokens) == ((0, 20),)
    engine.check_tracked()
    check_answers(engine)
    engine.check_over()


def test_ranks_that_fail_at_different_times_are_taken_together(start: Start) -> None:
    tokens = prompt(20 * BLOCK)
    engine = start(slots=(40, 40), lag=(0, 3))
    prepare(engine, tokens, 20 * BLOCK)
    engine.ranks[0].broken = {engine.keys(tokens)[15]}
    request = engine.add([*tokens, 1], answer=3)
    engine.step()
    # The other one finds out when its copy ends, that is of all blocks.
    engine.ranks[1].copies.failing = 1
    engine.settle()
    assert failed(engine) == ((0, 20),)
    assert engine.loaded[request] == 20 * BLOCK
    assert engine.counted(stats.LOADED, "l1") == 0
    check_answers(engine)
    engine.check_over()


def test_with_the_policy_fail_the_request_ends_with_an_error_and_nothing_is_left(start: Start) -> None:
    tokens = prompt(20 * BLOCK)
    engine = start(slots=(40, 40), lag=(0, 2), policy="fail")
    prepare(engine, tokens, 20 * BLOCK)
    engine.ranks[0].broken = {engine.keys(tokens)[12]}
    request = engine.add([*tokens, 1])
    engine.settle()
    assert str(engine.ended[request]) == "error"
    engine.check_over()


@by_request
@pytest.mark.parametrize("groups", [(full(32), mamba(32)), (full(32), sliding(70, 32))], ids=["states", "window"])
def test_with_several_groups_a_failed_load_is_told_by_request_and_all_is_computed(
    start: Start, groups: tuple[object, ...]
) -> None:
    tokens = prompt(10 * 32)
    engine = start(groups=groups, slots=(60, 60), lag=(0, 2))
    prepare(engine, tokens, 10 * 32)
    engine.ranks[1].broken = {engine.keys(tokens, 1)[9]}
    request = engine.add([*tokens, 1], answer=3)
    engine.settle()
    assert engine.loaded[request] == 10 * 32
    assert engine.invalid_blocks == set()
    assert engine.counted(stats.LOADED, "l1") == 0
    assert engine.counted(stats.FAILED, "l1") == 10 * 32
    check_answers(engine)
    engine.check_over()


@by_request
def test_a_failed_load_is_told_by_request_where_a_group_that_is_not_kept_makes_several(start: Start) -> None:
    tokens = prompt(20 * BLOCK)
    engine = start(groups=(full(), replayed()), slots=(40,))
    prepare(engine, tokens, 20 * BLOCK)
    engine.ranks[0].broken = {engine.keys(tokens)[9]}
    request = engine.add([*tokens, 1], answer=3)
    engine.settle()
    assert engine.loaded[request] > 10 * BLOCK
    assert engine.invalid_blocks == set()
    assert engine.counted(stats.LOADED, "l1") == 0
    assert engine.counted(stats.FAILED, "l1") == engine.loaded[request]
    check_answers(engine)
    engine.check_over()


def test_with_several_groups_a_vllm_that_cannot_be_told_is_stopped(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "require", lambda: dataclasses.replace(compat.probe(), transfer_results=False))
    tokens = prompt(10 * 32)
    engine = start(groups=(full(32), mamba(32)))
    prepare(engine, tokens, 10 * 32)
    engine.ranks[0].broken = {engine.keys(tokens, 1)[9]}
    engine.add([*tokens, 1])
    with pytest.raises(RuntimeError, match=r"^1 blocks of a model with several cache groups .* vLLM 0.30 or newer"):
        engine.step()


def test_a_request_whose_load_failed_is_computed_however_often_it_starts_again(start: Start) -> None:
    tokens = prompt(20 * BLOCK)
    engine = start()
    prepare(engine, tokens, 20 * BLOCK)
    # A rank that cannot read what it holds, each time.
    engine.ranks[0].broken = {engine.keys(tokens)[0]}
    request = engine.add([*tokens, 1], answer=20)
    engine.until(lambda: len(engine.answers[request]) == 5)
    engine.preempt()
    engine.settle()
    assert engine.loaded[request] == 20 * BLOCK
    check_answers(engine)
    engine.check_over()


def _saves(engine: Engine) -> int:
    return sum(len(one.saves) for one in engine.metadata)


def test_a_copy_to_l1_that_fails_on_one_rank_leaves_nothing_tracked(start: Start) -> None:
    tokens = prompt(10 * BLOCK)
    engine = start(slots=(40, 40))
    engine.ranks[1].copies.failing = 1
    engine.serve(tokens)
    assert _saves(engine) == 1
    assert engine.tracked() == frozenset()
    assert len(engine.ranks[0].pool) == 10
    assert len(engine.ranks[1].pool) == 0
    engine.check_over()
    engine.flood()
    engine.serve(tokens)
    assert engine.tracked(tokens) == ((0, 10),)
