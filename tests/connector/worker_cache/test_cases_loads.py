"""The traps of a tracked tier that are about promises and loads, by the numbers of their case files."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.worker_cache.cases import BLOCK, CASES, check_answers, failed, prepare, prompt, ranges
from tests.connector.worker_cache.conftest import Start

from kvserving_connector.vllm.worker_cache import stats

pytestmark = pytest.mark.engine


def test_t03_partial_load(start: Start) -> None:
    case = CASES["T3"]
    given = case["input"]
    tokens = prompt(given["prompt_tokens"])
    engine = start()
    prepare(engine, tokens, given["prompt_tokens"], given["local_tokens"])
    missing = case["expected"]["failed_block_indices"]
    keys = engine.keys(tokens)
    engine.ranks[0].broken = {keys[block] for block in missing}
    # One block more than the promise, as one token is left to compute.
    request = engine.add(tokens[: given["local_tokens"] + given["promised_tokens"] + 1])
    engine.step()
    assert engine.loaded[request] == given["promised_tokens"]
    assert failed(engine) == ranges(case["expected"]["failed"])
    assert engine.invalid_blocks == {engine.table(request)[block] for block in missing}
    tracked = engine.tracked()
    assert not tracked & {keys[block] for block in missing}
    assert {keys[block] for block in range(case["expected"]["tracked_untouched_from"], 40)} <= tracked
    engine.settle()
    assert engine.counted(stats.LOADED, "l1") == case["expected"]["received_tokens"]
    assert engine.counted(stats.FAILED, "l1") == given["promised_tokens"] - case["expected"]["received_tokens"]
    # What was computed instead is saved again.
    assert engine.tracked(tokens) == ((0, 40),)
    engine.check_over()


@pytest.mark.parametrize(("name", "acquired"), [("T4", 256), ("T5", 128)])
def test_t04_t05_shifted_alignment(start: Start, name: str, acquired: int) -> None:
    case = CASES[name]
    given, expected = case["input"], case["expected"]
    tokens = prompt(given["prompt_tokens"])
    engine = start(hybrid_chunk_size=case["config"]["cache_block_tokens"])
    assert given["acquired_tokens_from_aligned_start"] == acquired
    prepare(engine, tokens, given["local_tokens"] + given["promised_tokens"], given["local_tokens"])
    engine.ranks[0].broken = set(engine.keys(tokens)[acquired // case["config"]["cache_block_tokens"] :])
    request = engine.add(tokens)
    engine.settle()
    assert engine.loaded[request] == given["promised_tokens"]
    assert engine.counted(stats.LOADED, "l1") == expected["received_tokens"]
    assert failed(engine) == ranges(expected["failed"])
    assert engine.answers[request] == engine.texts[request].answer(1)


def test_t06_promise_rounded_to_cache_block(start: Start) -> None:
    case = CASES["T6"]
    tokens = prompt(case["input"]["prompt_tokens"])
    engine = start(hybrid_chunk_size=case["config"]["cache_block_tokens"])
    prepare(engine, tokens, case["input"]["tracked_tokens"])
    assert engine.serve(tokens) == case["expected"]["any_of"][0]["promised_tokens"]
    assert failed(engine) == ()


@pytest.mark.parametrize("index", [0, 1])
def test_t07_below_and_at_the_transfer_threshold(start: Start, index: int) -> None:
    variant = CASES["T7"]["input"]["variants"][index]
    tokens = prompt(variant["prompt_tokens"])
    engine = start()
    prepare(engine, tokens, variant["tracked_tokens"])
    assert engine.serve(tokens) == variant["tracked_tokens"]
    assert engine.counted(stats.LOADED, "l1") == variant["tracked_tokens"]


@pytest.mark.parametrize("index", [0, 1])
def test_t08_full_hit_leaves_a_token(start: Start, index: int) -> None:
    variant = CASES["T8"]["input"]["variants"][index]
    tokens = prompt(variant["prompt_tokens"])
    engine = start()
    prepare(engine, tokens, variant["tracked_tokens"])
    assert engine.tracked(tokens) == ((0, variant["tracked_tokens"] // BLOCK),)
    assert engine.serve(tokens) == CASES["T8"]["expected"]["variants"][index]["promised_tokens_at_most"]


def test_t11_failed_ranges_union(start: Start) -> None:
    case = CASES["T11"]
    tokens = prompt(16 * BLOCK)
    engine = start(slots=(64, 64), lag=(0, 2))
    prepare(engine, tokens, 16 * BLOCK)
    keys = engine.keys(tokens)
    for rank, report in zip(engine.ranks, case["input"]["reports"], strict=True):
        ((first, count),) = report["failed"]
        rank.broken = set(keys[first : first + count])
    engine.add([*tokens, 1])
    engine.step()
    assert {block for block, key in enumerate(keys) if key not in engine.tracked()} == set(
        case["expected"]["dropped_blocks"]
    )
    assert engine.tracked(tokens) == ranges(case["expected"]["tracked_ranges"])
    for rank in engine.ranks:
        rank.broken = set()
    engine.settle()
    assert engine.counted(stats.LOADED, "l1") == 2 * BLOCK
    assert engine.tracked(tokens) == ((0, 16),)
    engine.check_tracked()
    engine.check_over()


def test_t14_preempt_after_promise(start: Start) -> None:
    promised = CASES["T14"]["input"]["events"][0][2]
    tokens = prompt(promised + 1)
    engine = start()
    prepare(engine, tokens, promised)
    request = engine.add(tokens, answer=40)
    engine.until(lambda: len(engine.answers[request]) == 10)
    assert engine.loaded[request] == promised
    # L1 loses some of it: what was promised before says nothing of now.
    for key in engine.keys(tokens)[10:]:
        engine.ranks[0].pool.discard(key)
    engine.step()
    engine.preempt()
    engine.settle()
    assert engine.loaded[request] == promised + 10 * BLOCK
    check_answers(engine)
    engine.check_over()


def test_t15_resumed_beyond_the_prompt(start: Start) -> None:
    # Prompt 128 and 64 generated: what is tracked of the answer is promised too, and nothing beyond it.
    tokens = prompt(128)
    engine = start(offload_prompt_only=False)
    request = engine.add(tokens, answer=100)
    engine.until(lambda: len(engine.tracked()) == 12)
    held = engine.request(request).num_tokens
    engine.preempt()
    engine.until(lambda: engine.loaded[request])
    assert engine.loaded[request] == 192 < held
    engine.settle()
    check_answers(engine)
    engine.check_over()


@pytest.mark.parametrize(("more", "promised"), [(0, 176), (1, 192)])
def test_t15_a_promise_ends_before_the_last_token_that_there_is(start: Start, more: int, promised: int) -> None:
    tokens = prompt(128)
    engine = start(offload_prompt_only=False)
    request = engine.add(tokens, answer=80)
    engine.settle()
    engine.flood()
    assert len(engine.tracked()) == 12
    whole = [*tokens, *engine.answers[request]][: 192 + more]
    again = engine.add(whole, answer=1)
    engine.settle()
    assert engine.loaded[again] == promised


def test_t23_injected_load_faults(start: Start) -> None:
    chance = random.Random(23)
    engine = start(slots=(120, 120), lag=(0, 1))
    prompts = [prompt(20 * BLOCK, seed) for seed in range(5)]
    for tokens in prompts:
        engine.serve(tokens)
    engine.flood()
    engine.forget()
    loaded = wanted = 0
    for _ in range(6):
        for tokens in prompts:
            keys = engine.keys(tokens)
            broken = [{key for key in keys if chance.random() < 0.03} for _ in engine.ranks]
            for rank, each in zip(engine.ranks, broken, strict=True):
                rank.broken = each
            promise = engine.serve([*tokens, 1], answer=2)
            whole = next((block for block, key in enumerate(keys) if any(key in each for each in broken)), len(keys))
            wanted += promise
            loaded += min(promise, whole * BLOCK)
            engine.flood()
    assert 0 < loaded < wanted
    assert engine.counted(stats.PROMISED, "l1") == wanted
    assert engine.counted(stats.LOADED, "l1") == loaded
    assert engine.counted(stats.FAILED, "l1") == wanted - loaded
    check_answers(engine)
    engine.check_over()


def test_t27_lookup_called_three_times_before_scheduling(start: Start) -> None:
    tokens = prompt(10 * BLOCK)
    engine = start()
    prepare(engine, tokens, 10 * BLOCK)
    request = engine.add([*tokens, 1])
    answers = {engine.connector.get_num_new_matched_tokens(engine.request(request), 0) for _ in range(3)}
    assert answers == {(10 * BLOCK, True)}
    assert engine.counted(stats.PROMISED, "l1") == 0
    engine.settle()
    assert engine.counted(stats.PROMISED, "l1") == engine.counted(stats.LOADED, "l1") == 10 * BLOCK
