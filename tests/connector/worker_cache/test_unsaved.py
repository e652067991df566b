"""What a request computed and its saves had no room to hold is saved once it has ended, if it still is there."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.worker_cache.cases import BLOCK, check_answers, prompt
from tests.connector.worker_cache.conftest import Start
from tests.connector.worker_cache.pages import full, sliding

from kvserving_connector.vllm.worker_cache import stats

pytestmark = pytest.mark.engine

WHOLE = 80 * BLOCK


@pytest.mark.parametrize("batch", [WHOLE, 30 * BLOCK], ids=["one step", "three steps"])
@pytest.mark.parametrize("lag", [0, 1, 4])
def test_a_prompt_that_takes_most_of_the_engines_blocks_is_saved_whole(start: Start, batch: int, lag: int) -> None:
    tokens = prompt(WHOLE)
    engine = start(slots=(160,), blocks=100, batch=batch, lag=(lag,))
    engine.serve(tokens)
    assert engine.tracked(tokens) == ((0, 80),)
    assert engine.counted(stats.SAVED) == WHOLE
    engine.flood()
    assert engine.serve([*tokens, 1]) == WHOLE
    check_answers(engine)
    engine.check_over()


def test_saves_hold_half_of_the_engines_blocks_at_most(start: Start) -> None:
    engine = start(slots=(160,), blocks=100, batch=WHOLE, lag=(3,))
    engine.add(prompt(WHOLE))
    most = 0
    while engine.scheduler.has_requests():
        engine.step()
        most = max(most, len(engine.connector.scheduler_context.held))
    assert most == 50
    engine.check_over()


def test_what_several_requests_left_is_saved(start: Start) -> None:
    prompts = [prompt(30 * BLOCK, seed) for seed in range(3)]
    engine = start(slots=(160,), blocks=100, batch=WHOLE * 2, lag=(2,))
    for tokens in prompts:
        engine.add(tokens)
    engine.settle()
    assert [engine.tracked(tokens) for tokens in prompts] == [((0, 30),)] * 3
    engine.check_over()


def test_blocks_that_another_request_has_meanwhile_are_not_saved_as_the_first_ones(start: Start) -> None:
    first, second = prompt(WHOLE), prompt(40 * BLOCK, 1)
    engine = start(slots=(160,), blocks=100, batch=WHOLE, lag=(3,))
    engine.add(first)
    engine.step()
    # Half of the blocks are held; this takes of the others.
    engine.add(second)
    engine.settle()
    assert len(engine.tracked()) < 120
    engine.check_tracked()
    engine.flood()
    engine.serve([*first, 1])
    engine.flood()
    engine.serve([*second, 1])
    check_answers(engine)
    engine.check_over()


def test_what_is_left_when_the_engines_cache_is_emptied_is_gone(start: Start) -> None:
    tokens = prompt(WHOLE)
    engine = start(slots=(160,), blocks=100, batch=WHOLE, lag=(2,))
    engine.add(tokens)
    engine.step()
    assert engine.head.busy
    engine.connector.reset_cache()
    engine.settle()
    assert engine.tracked() == frozenset()
    engine.check_over()


def test_what_a_request_that_went_away_left_is_saved(start: Start) -> None:
    tokens = prompt(WHOLE)
    engine = start(slots=(160,), blocks=100, batch=WHOLE, lag=(2,))
    request = engine.add(tokens, answer=9)
    engine.step()
    engine.abort(request)
    engine.settle()
    assert engine.tracked(tokens) == ((0, 80),)
    engine.check_over()


def test_parts_of_several_groups_are_left_and_saved(start: Start) -> None:
    tokens = prompt(20 * 32)
    engine = start(groups=(full(32), sliding(70, 32)), slots=(160,), blocks=60, batch=20 * 32, lag=(1,))
    engine.serve(tokens)
    assert engine.counted(stats.SAVED) == 20 * 32
    engine.flood()
    assert engine.serve([*tokens, 1]) == 20 * 32
    check_answers(engine)
    engine.check_over()


@pytest.mark.parametrize("lag", [0, 2])
def test_it_is_saved_where_vllm_asks_for_no_saves_in_steps_without_requests(start: Start, lag: int) -> None:
    tokens = prompt(WHOLE)
    engine = start(slots=(160,), blocks=100, batch=WHOLE, lag=(lag,))
    engine.ranks[0].saves_when_idle = False
    engine.serve(tokens)
    assert engine.tracked(tokens) == ((0, 80),)
    engine.flood()
    assert engine.serve([*tokens, 1]) == WHOLE
    check_answers(engine)
    engine.check_over()
