"""What the calls of an engine's core say of a first token."""

from __future__ import annotations

import pytest
from e2e.gpu import core_calls
from e2e.gpu.first_token_steps import told


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
        }
    )


def test_a_hit_has_no_load_and_a_worker_alone_no_steps() -> None:
    hit = told([("start_load_kv", 1.0, 1.1, 0), ("schedule", 1.2, 1.3, 1)], asked=0.0, answered=2.0)
    assert set(hit) == {"first step", "its step", "answer", "steps"}
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
