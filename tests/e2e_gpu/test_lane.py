"""The lane's own conduct: budgets, failures, comparisons, raw results. No engine is started."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from e2e.gpu import lane
from e2e.gpu.asked import Asked, answered, compare
from e2e.gpu.counted import since, slots_in_use
from e2e.gpu.engine import Answer
from e2e.gpu.records import Damaged, Records, read
from e2e.gpu.shapes import GPU, TINY, Shape, on_one_gpu
from e2e.gpu.steps import Yardstick
from e2e.gpu.variants import VARIANTS, Lane
from e2e.local.asking import Reply

RIGHT = Answer((1, 2, 3), (0.5, 0.01, 0.5))


class Stage:
    """Stands in for services: comes up, unless its name says otherwise."""

    def __init__(self, folder: Path, engine_python: str) -> None:
        self.up_seconds = 0.0
        self.cleared = False
        stages.append(self)

    def show(self, topology: Any) -> Any:
        if topology.name == "staged":
            raise AssertionError("kvserving up ended with 3: no module vllm")
        if topology.name == "staged-large":
            raise subprocess.TimeoutExpired(["kvserving", "up"], self.up_seconds)
        return self

    def logs(self, lines: int) -> str:
        return "a log"

    def clear(self) -> None:
        self.cleared = True


stages: list[Stage] = []


async def sound(asked: Asked, yardstick: Yardstick) -> dict[str, Any]:
    yardstick.lengths = [RIGHT]
    return {"answers": [], "problems": []}


async def wrong(asked: Asked, yardstick: Yardstick) -> dict[str, Any]:
    return {"problems": ["one other answer"]}


async def failing(asked: Asked, yardstick: Yardstick) -> dict[str, Any]:
    raise ValueError("no such block")


@pytest.fixture
def lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lane.Lanes:
    stages.clear()
    monkeypatch.setattr(lane, "Stage", Stage)
    monkeypatch.setattr(lane, "Texts", lambda model: None)
    monkeypatch.setattr(lane.Lanes, "_model", lambda self: tmp_path)
    pair, one = (lambda variant: variant.prefill > 0), (lambda variant: variant.prefill == 0)
    steps = {
        "reference": lane.Step(sound, 5, one, compares=False),
        "ids": lane.Step(failing, 5, pair),
        "crowd": lane.Step(wrong, 5, pair),
        "aborts": lane.Step(sound, 5, pair),
    }
    monkeypatch.setattr(lane, "STEPS", steps)
    records = Records(tmp_path / "raw.jsonl", {"device": "none"})
    return lane.Lanes(TINY, "python", tmp_path, tmp_path, tmp_path / "kept" / "yardstick", records, 60.0, 1)


def outcomes(found: lane.Lanes) -> list[tuple[str, str, str]]:
    return [(one["variant"], one["step"], one["outcome"]) for one in read(found.records.file)]


def test_a_step_that_fails_is_written_down_and_the_next_ones_go_on(lanes: lane.Lanes) -> None:
    lanes.run(["plain"], ["ids", "crowd", "aborts"])
    assert outcomes(lanes) == [
        ("single", "up", "measured"),
        ("single", "reference", "measured"),
        ("plain", "up", "measured"),
        ("plain", "ids", "failed"),
        ("plain", "crowd", "failed"),
        ("plain", "aborts", "measured"),
    ]
    assert lanes.records.failed == 2
    assert lanes.records.written[3]["fault"] == "ValueError: no such block"
    assert "a log" in lanes.records.file.with_suffix(".log").read_text()
    assert all(stage.cleared for stage in stages)


def test_a_service_that_does_not_come_up_costs_its_own_steps_alone(lanes: lane.Lanes) -> None:
    lanes.run(["staged", "plain"], ["aborts"])
    assert ("staged", "up", "failed") in outcomes(lanes)
    assert ("plain", "aborts", "measured") in outcomes(lanes)
    assert not [one for one in outcomes(lanes) if one[:2] == ("staged", "aborts")]


def test_what_the_budget_has_no_time_for_is_left_out(lanes: lane.Lanes) -> None:
    lanes.budget = 0.5
    lanes.run(["plain"], ["aborts"])
    assert ("plain", "aborts", "left out") in outcomes(lanes)


def test_a_service_that_the_budget_ends_before_it_is_up_is_left_out_with_its_steps(lanes: lane.Lanes) -> None:
    lanes.run(["staged-large", "plain"], ["aborts"])
    assert outcomes(lanes)[2:] == [
        ("staged-large", "up", "left out"),
        ("staged-large", "aborts", "left out"),
        ("plain", "up", "measured"),
        ("plain", "aborts", "measured"),
    ]
    assert lanes.records.failed == 0
    assert lanes.records.written[2]["fault"] == "the budget ended 60 s after this was begun"
    assert all(stage.cleared for stage in stages)


def test_a_service_that_no_time_is_left_for_is_not_begun(lanes: lane.Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "show", None)
    lanes.budget = 0.5
    lanes.run(["plain"], ["aborts"])
    assert ("plain", "up", "left out") in outcomes(lanes)
    assert lanes.records.failed == 0


@pytest.mark.parametrize(("most", "budget", "outcome"), [(240.0, 0.0, "left out"), (0.0, 60.0, "failed")])
def test_a_model_that_is_not_made_in_time_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: float, budget: float, outcome: str
) -> None:
    monkeypatch.setattr(lane, "MODEL_SECONDS", most)
    records = Records(tmp_path / "raw.jsonl", {})
    found = lane.Lanes(TINY, sys.executable, tmp_path, tmp_path, tmp_path / "kept", records, budget, 1)
    found.run(["plain"], ["fresh"])
    assert [(one["step"], one["outcome"]) for one in read(records.file)] == [("model", outcome)]


async def stuck(asked: Asked, yardstick: Yardstick) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def given_up(asked: Asked, yardstick: Yardstick) -> dict[str, Any]:
    raise TimeoutError


def test_a_step_that_takes_too_long_says_how_long_that_is(lanes: lane.Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lane.STEPS, "aborts", lane.Step(stuck, 1, lambda variant: variant.prefill > 0))
    lanes.run(["plain"], ["aborts"])
    assert lanes.records.written[-1]["outcome"] == "failed"
    assert lanes.records.written[-1]["fault"] == "Late: not over after 1 s, the most it may take"


def test_a_step_that_the_budget_ends_is_left_out(lanes: lane.Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lane.STEPS, "aborts", lane.Step(stuck, 90, lambda variant: variant.prefill > 0))
    lanes.budget = 2.0
    lanes.run(["plain"], ["aborts"])
    assert lanes.records.written[-1]["outcome"] == "left out"


def test_a_fault_without_a_text_names_its_place_whatever_is_left_of_the_budget(
    lanes: lane.Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lane.STEPS, "aborts", lane.Step(given_up, 90, lambda variant: variant.prefill > 0))
    lanes.run(["plain"], ["aborts"])
    assert lanes.records.written[-1]["outcome"] == "failed"
    assert "TimeoutError without a text in given_up (test_lane.py, line " in lanes.records.written[-1]["fault"]


def test_without_a_yardstick_nothing_is_compared(lanes: lane.Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lane.STEPS, "reference", lane.Step(failing, 5, lambda variant: variant.prefill == 0, False))
    lanes.run(["plain"], ["aborts"])
    assert ("plain", "aborts", "left out") in outcomes(lanes)


def test_the_yardstick_is_computed_once_and_kept(lanes: lane.Lanes) -> None:
    lanes.run(["plain"], ["aborts"])
    assert Yardstick.of(json.loads(lanes.kept.read_text())).lengths == [RIGHT]
    lanes.run(["plain"], ["aborts"])
    assert outcomes(lanes).count(("single", "reference", "measured")) == 1


def test_no_yardstick_is_started_where_no_step_compares(lanes: lane.Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lane.STEPS, "fresh", lane.Step(sound, 5, lambda variant: variant.prefill > 0, compares=False))
    lanes.run(["plain"], ["fresh"])
    assert outcomes(lanes) == [("plain", "up", "measured"), ("plain", "fresh", "measured")]
    assert not lanes.kept.exists()


def test_answers_that_part_are_ties_only_where_the_yardsticks_lead_is_small() -> None:
    found = [RIGHT, Answer((1, 9, 3), ()), Answer((7, 2, 3), ())]
    assert compare([RIGHT] * 3, found) == {"equal": 1, "ties": 1, "others": 1, "parted": [0.01, 0.5]}


def test_where_batches_change_no_answer_no_tie_is_forgiven() -> None:
    found = [RIGHT, Answer((1, 9, 3), ())]
    assert compare([RIGHT] * 2, found, None) == {"equal": 1, "ties": 0, "others": 1, "parted": [0.01]}


@pytest.mark.parametrize("shape", [GPU, on_one_gpu(GPU)], ids=["two GPUs", "one GPU"])
def test_what_is_timed_on_fresh_engines_fits_into_their_cache_once(shape: Shape) -> None:
    tokens = 2 * 4000 + sum(length * shape.fresh_times(length) for length in shape.timed)
    assert shape.kv_bytes is not None
    assert tokens * shape.kv_token < shape.kv_bytes


def test_engines_of_one_gpu_are_told_to_read_by_cudas_own_means() -> None:
    text = Lane("plain", Path("/models/any"), variant=VARIANTS["plain"], shape=replace(on_one_gpu(GPU), exact=True))
    variables = {one["name"]: one["value"] for one in json.loads(text.text("plain"))["spec"]["engine"]["env"]}
    assert variables["UCX_CUDA_IPC_ENABLE_GET_ZCOPY"] == "on"
    assert variables["VLLM_BATCH_INVARIANT"] == "1"
    assert "UCX_CUDA_IPC_ENABLE_GET_ZCOPY" not in GPU.environment()


def test_a_reply_has_the_lead_of_each_token() -> None:
    reply = Reply(((5, 6),), "length", 2, ({"token_id:5": -0.25, "token_id:8": -1.75}, {"a": -3.0, "b": -1.0}))
    assert answered(reply) == Answer((5, 6), (1.5, 2.0))


def test_counters_are_told_apart_by_what_was_counted_in_between() -> None:
    assert since({"bytes": 5.0}, {"bytes": 9.0, "staged": 2.0, "direct": 0.0}) == {"bytes": 4.0, "staged": 2.0}
    assert slots_in_use({"staged": 5.0, "slots_released": 3.0}) == 2


def test_a_broken_line_of_raw_results_is_named(tmp_path: Path) -> None:
    file = tmp_path / "raw.jsonl"
    for line in (b'{"step": ', b"\xff", b"[1]", b"null", b"[" * 100_000, b'{"step": "up"}'):
        file.write_bytes(b'{"step": "up", "device": "x"}\n' + line + b"\n")
        with pytest.raises(Damaged, match=r"raw\.jsonl, line 2"):
            read(file, ("step", "device"))


def test_a_result_that_is_added_behind_a_torn_one_is_not_lost_with_it(tmp_path: Path) -> None:
    file = tmp_path / "raw.jsonl"
    file.write_text('{"step": "up"}\n{"step": "i')
    Records(file, {}).add("ids", "plain", "measured", 0.0)
    lines = file.read_text().splitlines()
    assert lines[1] == '{"step": "i'
    assert json.loads(lines[2])["step"] == "ids"
