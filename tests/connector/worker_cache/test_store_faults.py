"""A store that is full, hangs, or answers too late: a miss, nobody waits for it, and no wrong byte."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.store.rank_rig import Held
from tests.connector.worker_cache.cases import BLOCK, check_answers, prompt
from tests.connector.worker_cache.conftest import Start
from tests.connector.worker_cache.settings import store

from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.vllm.series import TIMEOUTS
from kvserving_connector.vllm.worker_cache import l2

pytestmark = pytest.mark.engine


class Full(FileStore):
    def put(self, key: str, parts: Any, deadline: float) -> bool:
        raise StoreFault(Reason.FULL, "no room")


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Held]]:
    """The stores that ranks open from now on, in their order."""
    opened: list[Held] = []

    def open_store(*_: Any) -> Held:
        opened.append(Held(tmp_path))
        return opened[-1]

    monkeypatch.setattr(l2, "open_store", open_store)
    yield opened
    for one in opened:
        one.release.set()


def test_a_full_store_is_left_out_and_told_once_by_each_rank(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "vllm.kvserving")
    monkeypatch.setattr(l2, "open_store", lambda *_: Full(tmp_path))
    tokens = prompt(10 * BLOCK)
    engine = start(slots=(40, 40), **store(tmp_path))
    engine.serve(tokens)
    engine.flood()
    assert engine.serve([*tokens, 1]) == 10 * BLOCK
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    check_answers(engine)
    engine.check_over()
    told = [record.getMessage() for record in caplog.records if "could not be written" in record.getMessage()]
    assert len(told) == 2, told
    assert all("full: no room" in line for line in told)


def test_a_look_up_that_hangs_on_one_rank_ends_in_time_and_the_prompt_is_computed(
    start: Start, tmp_path: Path, held: list[Held]
) -> None:
    tokens = prompt(10 * BLOCK)
    start(slots=(40, 40), **store(tmp_path)).serve(tokens)
    cold = start(name="cold", slots=(40, 40), load_timeout_s=0.3, **store(tmp_path))
    held[3].held.add("exists")
    assert cold.serve([*tokens, 1], answer=2) == 0
    assert cold.counted(TIMEOUTS.name) == 1
    check_answers(cold)
    held[3].release.set()
    cold.settle()
    cold.check_over()


def test_a_read_that_hangs_on_one_rank_ends_in_time_and_its_slots_are_not_written_late(
    start: Start, tmp_path: Path, held: list[Held]
) -> None:
    tokens = prompt(10 * BLOCK)
    start(slots=(40, 40), **store(tmp_path)).serve(tokens)
    cold = start(name="cold", slots=(12, 12), load_timeout_s=0.3, **store(tmp_path, load_timeout_s=0.5))
    held[3].held.add("get")
    request = cold.add([*tokens, 1], answer=2)
    cold.until(lambda: request in cold.ended)
    assert cold.loaded[request] == 0
    cold.settle()
    cold.check_over()
    # The same slots hold other parts when the reads come back.
    for seed in range(1, 4):
        cold.serve(prompt(11 * BLOCK, seed))
    held[3].held.clear()
    held[3].release.set()
    cold.settle()
    cold.flood()
    assert cold.serve([*prompt(11 * BLOCK, 3), 1]) > 0
    check_answers(cold)
    cold.check_over()


def test_a_request_that_goes_away_while_its_prompt_is_read_leaves_nothing_behind(
    start: Start, tmp_path: Path, held: list[Held]
) -> None:
    tokens = prompt(10 * BLOCK)
    start(slots=(40,), **store(tmp_path)).serve(tokens)
    cold = start(name="cold", slots=(40,), **store(tmp_path))
    held[1].held.add("get")
    request = cold.add([*tokens, 1])
    cold.until(lambda: cold.ranks[0].half._probes._reads)
    cold.abort(request)
    cold.step()
    assert cold.ranks[0].half._probes._open == {}
    held[1].release.set()
    cold.settle()
    cold.check_over()
    # What was read all the same is of use to the next one.
    assert cold.serve([*tokens, 1]) == 10 * BLOCK
    check_answers(cold)
