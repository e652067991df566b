"""Which child loads, how long a "not yet" is waited for, and what is counted: no vLLM in sight."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_connector.core import choice as choices
from kvserving_connector.core.choice import Answer, Child, Choice, Deferral, Patience, Waits, choose
from kvserving_connector.core.selection import Selection

NOT_YET = Answer(None)


def ask(
    children: list[Child],
    tokens: list[int | None],
    *,
    limit: int = 1000,
    remote_prefill: bool = False,
    had_blocks: bool = False,
    patient: bool = True,
) -> Choice:
    answers = [Answer(count, bool(count)) for count in tokens]
    return choose(
        children,
        answers,
        limit=lambda: limit,
        remote_prefill=remote_prefill,
        had_blocks=had_blocks,
        patient=lambda: patient,
    )


def cache(weight: float = 1.0, deferral: Deferral = Deferral.SOFT, label: str = "cache") -> Child:
    return Child(label, weight, deferral)


NIXL = Child("nixl", transfers=True)


@pytest.mark.parametrize(
    ("weights", "tokens", "child"),
    [
        ((4, 1), (100, 300), 0),
        ((4, 1), (100, 500), 1),
        ((1, 4), (300, 100), 1),
        ((1, 1), (100, 101), 1),
        ((1, 1), (100, 100), 0),
        ((1, 2), (200, 100), 0),
        ((0.5, 0.25), (0, 1), 1),
        ((1, 1), (0, 0), None),
    ],
)
def test_the_most_tokens_times_weight_win_and_the_first_of_equals(
    weights: tuple[float, float], tokens: tuple[int, int], child: int | None
) -> None:
    choice = ask([cache(weight) for weight in weights], list(tokens))
    assert choice.child == child
    assert choice.tokens == (0 if child is None else tokens[child])
    assert choice.asynchronous == (child is not None)
    assert not choice.waits


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.floats(0.001, 1e6)), min_size=1, max_size=6),
)
def test_no_child_would_have_scored_more(offers: list[tuple[int, float]]) -> None:
    choice = ask([cache(weight) for _, weight in offers], [tokens for tokens, _ in offers])
    scores = [tokens * weight for tokens, weight in offers]
    if choice.child is None:
        assert not any(scores)
    else:
        assert scores[choice.child] == max(scores) > 0
        assert all(score < scores[choice.child] for score in scores[: choice.child])


def test_a_prefill_engine_that_waits_to_be_read_wins_whatever_the_weights() -> None:
    children = [cache(1_000_000), NIXL]
    assert ask(children, [900, 10]).child == 0
    assert ask(children, [900, 10], remote_prefill=True).child == 1
    assert ask(children, [900, 0], remote_prefill=True).child == 0
    assert ask([NIXL, cache(1_000_000)], [10, 900], remote_prefill=True).child == 0


def test_a_lookup_is_not_waited_for_when_the_prefill_engine_is_certain() -> None:
    assert ask([NIXL, cache(9)], [10, None], remote_prefill=True) == Choice(child=0, tokens=10, asynchronous=True)
    assert ask([NIXL, cache(9)], [10, None]).waits


@pytest.mark.parametrize(
    ("tokens", "weights", "limit", "waits"),
    [
        ((600, None), (1, 1), 600, False),
        ((600, None), (1, 1), 601, True),
        ((None, 600), (1, 1), 600, True),
        ((None, 600), (1, 1.5), 600, False),
        ((100, None), (8, 1), 800, False),
        ((100, None), (8, 1), 801, True),
        ((0, None), (1, 1), 1, True),
        ((0, None), (1, 1), 0, False),
    ],
)
def test_a_lookup_is_waited_for_only_while_it_may_change_the_result(
    tokens: tuple[int | None, int | None], weights: tuple[float, float], limit: int, waits: bool
) -> None:
    children = [cache(weight) for weight in weights]
    assert ask(children, list(tokens), limit=limit).waits == waits


def test_an_answer_does_not_wait_longer_than_the_patience() -> None:
    children = [cache(), cache()]
    assert ask(children, [100, None]).waits
    assert ask(children, [100, None], patient=False) == Choice(child=0, tokens=100, asynchronous=True, gave_up=True)
    assert ask(children, [0, None], patient=False) == Choice(gave_up=True)
    assert ask(children, [None, None], patient=False) == Choice(gave_up=True)


def test_a_child_that_ends_its_lookups_itself_is_waited_for_without_patience_but_not_by_a_promised_transfer() -> None:
    children = [NIXL, cache(), cache(deferral=Deferral.SELF_BOUNDED)]
    assert ask(children, [0, 100, None], patient=False, limit=600).waits
    assert ask(children, [0, 100, None], patient=False, limit=99) == Choice(child=1, tokens=100, asynchronous=True)
    assert ask(children, [600, 100, None], patient=False, remote_prefill=True, limit=600).child == 0
    assert ask(children, [600, 100, None], patient=False, remote_prefill=True, had_blocks=True, limit=600).waits


@pytest.mark.parametrize("tokens", [0, 100])
def test_a_child_that_may_still_move_blocks_is_always_waited_for(tokens: int) -> None:
    for deferral, had_blocks in ((Deferral.HARD, False), (Deferral.HARD, True), (Deferral.SOFT_AT_FIRST, True)):
        children = [NIXL, cache(deferral=deferral)]
        choice = ask(children, [tokens, None], remote_prefill=True, had_blocks=had_blocks, patient=False, limit=tokens)
        assert choice == Choice(waits=True), (deferral, had_blocks)
    for deferral, had_blocks in ((Deferral.SOFT_AT_FIRST, False), (Deferral.SOFT, True)):
        children = [NIXL, cache(deferral=deferral)]
        choice = ask(children, [tokens, None], remote_prefill=True, had_blocks=had_blocks, patient=False, limit=tokens)
        assert not choice.waits, (deferral, had_blocks)


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def wait(waits: Waits, request: str = "r") -> bool:
    waits.note(request)
    return waits.patient(request)


def test_the_patience_ends_when_both_its_bounds_have_passed() -> None:
    clock = Clock()
    waits = Waits(Patience(seconds=1.0, questions=3), clock)
    assert [wait(waits) for _ in range(5)] == [True] * 5
    clock.now += 0.99
    assert wait(waits)
    clock.now += 0.02
    assert not wait(waits)
    assert [wait(waits, "slow steps") for _ in range(1)] == [True]
    clock.now += 9
    assert [wait(waits, "slow steps") for _ in range(3)] == [True, True, False]


def test_an_ended_patience_stays_ended_until_the_request_has_blocks() -> None:
    clock = Clock()
    waits = Waits(Patience(seconds=0.0, questions=1), clock)
    assert [wait(waits) for _ in range(3)] == [True, False, False]
    waits.end("r")
    assert len(waits) == 0
    assert wait(waits)
    assert len(waits) == 1


def test_a_long_wait_is_reported_once() -> None:
    clock = Clock()
    waits = Waits(Patience(), clock)
    waits.note("r")
    assert not waits.overdue("r")
    clock.now += 30
    assert [waits.overdue("r"), waits.overdue("r")] == [True, False]
    waits.end("r")
    waits.note("r")
    assert not waits.overdue("r")


@pytest.mark.parametrize(
    "value", [0, -1, 0.0, float("nan"), float("inf"), "4", None, True, [1], {}, -0.5, 10**400, -float("inf")]
)
def test_a_weight_that_cannot_be_is_refused_with_its_field(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^connectors\[1\] \(B\)\.kv_connector_extra_config\.load_weight="):
        choices.load_weight({"load_weight": value}, "connectors[1] (B)")


def test_the_weights_that_the_operator_renders_are_taken() -> None:
    assert choices.load_weight({}, "x") == 1.0
    assert choices.load_weight({"load_weight": 1_000_000}, "x") == 1_000_000.0
    assert choices.load_weight({"load_weight": 0.25}, "x") == 0.25


def test_defer_is_hard_or_soft_and_no_class_becomes_softer_than_is_safe() -> None:
    assert choices.deferral({}, "x", Deferral.HARD) is Deferral.HARD
    assert choices.deferral({"defer": "soft"}, "x", Deferral.HARD) is Deferral.SOFT
    assert choices.deferral({"defer": "hard"}, "x", Deferral.SOFT_AT_FIRST) is Deferral.HARD
    for default in (Deferral.SOFT_AT_FIRST, Deferral.SELF_BOUNDED):
        assert choices.deferral({"defer": "soft"}, "x", default) is Deferral.SOFT_AT_FIRST
    assert choices.deferral({}, "x", Deferral.SELF_BOUNDED) is Deferral.SELF_BOUNDED
    for value in ("soft-at-first", "never", 1, True, ""):
        with pytest.raises(ValueError, match=r"^x\.kv_connector_extra_config\.defer="):
            choices.deferral({"defer": value}, "x", Deferral.HARD)


def test_the_patience_is_a_number_of_seconds() -> None:
    assert choices.patience({}, "x") == Patience()
    assert choices.patience({"patience_seconds": 0}, "x").seconds == 0.0
    for value in (-1, "1", float("inf"), None):
        with pytest.raises(ValueError, match=r"^x\.patience_seconds="):
            choices.patience({"patience_seconds": value}, "x")


def test_labels_tell_children_of_one_class_apart() -> None:
    assert choices.labels(["A", "B"]) == ("A", "B")
    assert choices.labels(["A", "B", "A"]) == ("A-1", "B", "A-2")


def selection() -> Selection:
    return Selection([cache(label="a"), cache(label="b")])


def note(counted: Selection, request: str, tokens: list[int | None], child: int | None, **values: Any) -> None:
    answers = [Answer(count, bool(count)) for count in tokens]
    chosen = tokens[child] if child is not None else 0
    counted.decided(request, answers, Choice(child=child, tokens=chosen or 0, asynchronous=True, **values))


def test_a_question_counts_once_when_the_request_has_blocks() -> None:
    counted = selection()
    for _ in range(5):
        note(counted, "r", [64, 32], 0)
    assert counted.drain() is None
    counted.allocated("r", 64)
    counted.allocated("r", 0)
    assert counted.drain() == {
        "queries": {"a": 1, "b": 1},
        "hits": {"a": 1},
        "hit_tokens": {"a": 64},
        "misses": {},
        "pending_loads": {"a": 1, "b": 0},
    }
    assert counted.drain() is None


def test_no_tokens_and_no_answer_in_time_are_misses_and_a_lost_offer_is_neither() -> None:
    counted = selection()
    note(counted, "none", [0, None], None)
    counted.allocated("none", 0)
    note(counted, "lost", [8, 4], 0)
    counted.allocated("lost", 8)
    note(counted, "unused", [8, 0], 0)
    counted.allocated("unused", 0)
    counts = counted.drain()
    assert counts is not None
    assert counts["queries"] == {"a": 3, "b": 3}
    assert counts["hits"] == {"a": 1}
    assert counts["misses"] == {"a": 1, "b": 2}


def test_a_request_that_waits_again_leaves_no_decision_behind() -> None:
    counted = selection()
    note(counted, "r", [8, 0], 0)
    counted.decided("r", [NOT_YET, NOT_YET], Choice(waits=True))
    counted.allocated("r", 8)
    assert counted.drain() is None


def test_loads_under_way_rise_and_fall_to_zero_and_nothing_is_remembered_of_finished_requests() -> None:
    counted = selection()
    for request in ("one", "two", "three"):
        note(counted, request, [0, 16], 1)
        counted.allocated(request, 16)
    counts = counted.drain()
    assert counts is not None
    assert counts["pending_loads"] == {"a": 0, "b": 3}
    counted.loaded(["one", "unknown"])
    counted.finished("two")
    counts = counted.drain()
    assert counts is not None
    assert counts["pending_loads"] == {"a": 0, "b": 1}
    assert counts["queries"] == {}
    counted.loaded(["three"])
    counts = counted.drain()
    assert counts is not None
    assert counts["pending_loads"] == {"a": 0, "b": 0}
    assert counted.had_blocks("one")
    for request in ("one", "three"):
        counted.finished(request)
    assert not counted.had_blocks("one")
    assert counted.remembered == 0


def test_a_load_within_the_step_is_not_under_way() -> None:
    counted = selection()
    counted.decided("r", [Answer(16, False), Answer(0)], Choice(child=0, tokens=16, asynchronous=False))
    counted.allocated("r", 16)
    counts = counted.drain()
    assert counts is not None
    assert counts["hits"] == {"a": 1}
    assert counts["pending_loads"] == {"a": 0, "b": 0}
