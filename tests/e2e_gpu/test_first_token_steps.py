"""What the calls of an engine's core say of a first token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from e2e.gpu import core_calls, traces
from e2e.gpu.first_token_steps import told, trace


def test_a_prompt_that_is_loaded_has_its_load_before_its_own_step() -> None:
    calls = [
        ("schedule", 9.0, 9.1, 1),
        ("schedule", 10.1, 10.2, 0),
        ("start_load_kv", 10.25, 10.3, 0),
        ("get_finished", 10.3, 10.31, 0),
        ("get_transfer_results", 10.4, 10.5, 1),
        ("update_from_output", 10.5, 10.55, 0),
        ("schedule", 10.6, 10.7, 1),
        ("update_from_output", 10.9, 11.0, 0),
        ("schedule", 11.2, 11.3, 0),
        ("schedule", 99.0, 99.1, 7),
    ]
    found = told(calls, asked=10.0, answered=11.5)
    assert found == pytest.approx(
        {
            "first step": 0.2,
            "load asked for": 0.3,
            "load over": 0.5,
            "its step": 0.7,
            "token": 1.0,
            "answer": 1.5,
            "steps": 3.0,
            "computed": 1.0,
        }
    )


def test_a_load_within_its_step_lies_where_the_worker_waits_for_it() -> None:
    calls = [
        ("schedule", 1.0, 1.1, 3),
        ("start_load_kv", 1.2, 1.7, 0),
        ("get_transfer_results", 1.8, 1.9, 0),
        ("update_from_output", 1.9, 2.0, 0),
        ("schedule", 2.0, 2.1, 0),
        ("start_load_kv", 2.1, 2.2, 0),
    ]
    found = told(calls, asked=1.0, answered=2.5)
    assert (found["load asked for"], found["load over"]) == pytest.approx((0.2, 0.7))
    assert (found["its step"], found["computed"]) == pytest.approx((0.1, 3.0))


def test_a_hit_has_no_load_and_a_worker_alone_no_steps() -> None:
    hit = told([("schedule", 1.2, 1.3, 1)], asked=0.0, answered=2.0)
    assert set(hit) == {"first step", "its step", "answer", "steps", "computed"}
    assert told([("get_finished", 1.0, 1.1, 1)], asked=0.0, answered=2.0)["steps"] == 0


def test_a_call_is_noted_once_however_often_its_owner_is_watched() -> None:
    class Owner:
        def schedule(self) -> int:
            return 7

    for _ in range(3):
        core_calls._note(Owner, "schedule", lambda found: found)
    core_calls.taken()
    assert Owner().schedule() == 7
    ((name, began, ended, number),) = core_calls.taken()
    assert (name, number) == ("schedule", 7)
    assert began <= ended
    assert core_calls.taken() == []


def test_what_is_traced_is_a_prompt_from_l1_and_nothing_before_it(tmp_path: Path) -> None:
    class Engine:
        def __init__(self) -> None:
            self.did: list[Any] = []

        def first_token(self, prompt: list[int]) -> None:
            self.did.append(len(prompt))

        def settle(self) -> None:
            self.did.append("settled")

        def forget(self) -> None:
            self.did.append("forgotten")

        def of_ranks(self, function: Any, *arguments: Any) -> None:
            self.did.append((function, *arguments))

    engine: Any = Engine()
    trace(engine, 512, tmp_path / "trace.json")
    beginning, end = (traces.begin,), (traces.end, str(tmp_path / "trace.json"))
    assert engine.did == [513, "settled", "forgotten", beginning, 513, end]
