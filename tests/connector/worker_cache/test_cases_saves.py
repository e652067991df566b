"""The traps of a tracked tier that are about saving, by the numbers of their case files."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.worker_cache.cases import BLOCK, CASES, check_answers, prompt, ranges, saved
from tests.connector.worker_cache.conftest import Start
from tests.connector.worker_cache.pages import full, mamba

from kvserving_connector.vllm.worker_cache import stats

pytestmark = pytest.mark.engine


def test_states_of_an_answer_are_saved_only_where_its_blocks_are(start: Start) -> None:
    for prompt_only, spans in ((True, 2), (False, 8)):
        engine = start(groups=(full(32), mamba(32)), blocks=200, offload_prompt_only=prompt_only)
        engine.serve(prompt(64), answer=200)
        saves = [span for one in engine.metadata for save in one.saves for span in save.spans]
        blocks, states = ({s.range for s in saves if group in {part.group for part in s.parts}} for group in (0, 1))
        assert len(blocks) == spans
        # Of states, vLLM before 0.31 offers the last of each step.
        assert states
        assert states <= blocks
        check_answers(engine)
        engine.check_over()


def test_t01_saved_range_starts_at_context(start: Start) -> None:
    case = CASES["T1"]
    tokens = prompt(case["input"]["prompt_tokens"])
    engine = start()
    engine.serve(tokens[: case["input"]["local_tokens"]])
    engine.head.reset()
    engine.step()
    engine.reports.clear()
    engine.serve(tokens)
    assert saved(engine) == list(ranges(case["expected"]["saved"]))
    keys = engine.keys(tokens)
    assert engine.tracked() == {keys[block] for block in case["expected"]["tracked_blocks_added"]}


def test_t02_part_already_in_l1(start: Start) -> None:
    case = CASES["T2"]
    tokens = prompt(case["input"]["prompt_tokens"])
    first, count = case["input"]["l1_has_blocks"]
    engine = start(slots=(80,))
    engine.serve(tokens[: (first + count) * BLOCK])
    engine.flood()
    # As after a rank's report that was about something else: only the workers know.
    engine.head.tracker.clear()
    engine.reports.clear()
    engine.serve(tokens)
    (save,) = [save for report in engine.reports for save in report.saves.values()]
    assert save.present == ranges(case["expected"]["present"])
    assert engine.tracked(tokens) == ranges(case["expected"]["tracked_ranges"])
    engine.flood()
    assert engine.serve(tokens) == 1008


def test_t02_what_is_tracked_already_is_not_asked_for_again(start: Start) -> None:
    case = CASES["T2"]
    tokens = prompt(case["input"]["prompt_tokens"])
    first, count = case["input"]["l1_has_blocks"]
    engine = start(slots=(80,))
    engine.serve(tokens[: (first + count) * BLOCK])
    engine.reports.clear()
    engine.flood()
    engine.serve(tokens)
    assert saved(engine) == list(ranges(case["expected"]["saved"]))
    assert engine.tracked(tokens) == ranges(case["expected"]["tracked_ranges"])


def test_t09_finish_in_the_save_step(start: Start) -> None:
    case = CASES["T9"]
    (_, _, settings), *_ = case["input"]["events"]
    tokens = prompt(settings["prompt_tokens"])
    engine = start(lag=(2,))
    request = engine.add(tokens, answer=settings["max_tokens"])
    engine.step()
    assert request in engine.ended
    assert engine.tracked() == frozenset()
    assert len(engine.head._hashes) == 0
    engine.settle()
    assert engine.tracked(tokens) == ranges(case["expected"]["tracked_ranges"])
    engine.flood()
    assert engine.serve(tokens) == case["expected"]["lookup_promised_tokens"]


def test_t10_a_rank_that_reports_nothing_has_saved_nothing(start: Start) -> None:
    variant = CASES["T10"]["expected"]["variants"][0]
    tokens = prompt(8 * BLOCK)
    engine = start(slots=(64, 64))
    engine.ranks[1].mute = True
    engine.add(tokens)
    for _ in range(4):
        engine.step()
    assert engine.tracked(tokens) == ranges(variant["tracked_ranges"])
    # It would have to go on stepping for the report that is awaited.
    assert engine.connector.has_pending_push_work()


def test_t10_what_the_shortest_rank_saved_is_tracked(start: Start) -> None:
    ((_, fewest),) = CASES["T10"]["input"]["variants"][1]["reports"][1]["saved"]
    tokens = prompt(8 * BLOCK)
    engine = start(slots=(64, fewest))
    engine.serve(tokens)
    assert engine.tracked(tokens) == ranges(CASES["T10"]["expected"]["variants"][1]["tracked_ranges"])
    engine.flood()
    assert engine.serve(tokens) == fewest * BLOCK


def test_t10_what_a_rank_lost_before_the_last_one_had_saved_it_is_not_tracked(start: Start) -> None:
    first, second = prompt(6 * BLOCK), prompt(6 * BLOCK, 1)
    engine = start(slots=(8, 40), lag=(0, 6))
    engine.add(first)
    engine.step()
    engine.add(second)
    engine.settle()
    assert engine.tracked(second) == ((0, 6),)
    assert len(engine.tracked()) < 12
    engine.check_tracked()
    engine.flood()
    engine.serve([*first, 1])
    engine.check_over()


def test_t12_bounded_by_l1(start: Start) -> None:
    case = CASES["T12"]
    (_, (_, blocks)) = case["input"]["events"][0]
    capacity = case["input"]["l1_capacity_blocks"]
    tokens = prompt(blocks * BLOCK)
    engine = start(slots=(capacity,), blocks=400, batch=2048)
    engine.serve(tokens)
    assert len(engine.tracked()) <= case["expected"]["tracked_blocks_at_most"]
    assert engine.tracked() == engine.held_by_all()
    engine.flood()
    # Not a rest that nobody can use: the beginning stays.
    ((first, count),) = engine.tracked(tokens)
    assert first == 0
    assert engine.serve(tokens) == count * BLOCK >= capacity * BLOCK * 3 // 4
    engine.check_over()


def test_a_prompt_longer_than_l1_that_is_computed_in_pieces_leaves_a_beginning(start: Start) -> None:
    tokens = prompt(160 * BLOCK)
    engine = start(slots=(64,), blocks=400, batch=512)
    engine.serve(tokens)
    engine.flood()
    assert engine.serve(tokens) > 0


def test_t16_chunked_prefill(start: Start) -> None:
    case = CASES["T16"]
    tokens = prompt(case["input"]["prompt_tokens"])
    engine = start(slots=(256,), batch=case["config"]["chunk_tokens"])
    engine.serve(tokens)
    assert saved(engine) == list(ranges(case["expected"]["saved"]))
    assert engine.tracked(tokens) == ranges(case["expected"]["tracked_ranges"])


def test_t22_thousands_of_distinct_parts_leave_nothing_behind(start: Start) -> None:
    engine = start(slots=(64,), blocks=400)
    for seed in range(160):
        engine.serve(prompt(50 * BLOCK, seed))
    assert sum(len(save.spans) for one in engine.metadata for save in one.saves) == 8000
    assert len(engine.tracked()) <= 64
    assert engine.tracked() == engine.held_by_all()
    (rank,) = engine.ranks
    assert len(rank.pool._parts) + len(rank.pool._victims) + len(rank.pool._lost) <= 2 * 64
    engine.check_over()


def test_what_all_ranks_saved_is_counted_once(start: Start) -> None:
    engine = start(slots=(64, 64))
    tokens = prompt(10 * BLOCK)
    engine.serve(tokens)
    assert engine.counted(stats.SAVED) == 10 * BLOCK
    engine.flood()
    engine.head.tracker.clear()
    engine.serve(tokens)
    assert engine.tracked(tokens) == ((0, 10),)
    assert engine.counted(stats.SAVED) == 10 * BLOCK
