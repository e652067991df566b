from __future__ import annotations

import pytest

from kvserving_operator.control.rollout_clock import LOOK, RolloutClock


def clock(*, running: bool = True) -> RolloutClock:
    made = RolloutClock(1000.0, 1000.0)
    made.run(running)
    return made


def test_time_counts_from_look_to_look() -> None:
    made = clock()
    for moment in (1100.0, 1400.0, 1700.0):
        made.look(moment)
    assert made.since == 1000.0


@pytest.mark.parametrize(("moment", "counted"), [(9000.0, 2 * LOOK), (400.0, 0.0)], ids=["forward", "back"])
def test_a_jump_of_the_clock_counts_as_the_longest_time_between_two_looks_or_none(
    moment: float, counted: float
) -> None:
    made = clock()
    made.look(moment)
    assert moment - made.since == counted


def test_time_at_rest_does_not_count_and_what_was_counted_stays() -> None:
    made = clock()
    made.look(1200.0)
    made.run(False)
    for moment in (5000.0, 9000.0):
        made.look(moment)
        assert moment - made.since == 200.0
        assert made.progressed_at == 1000.0, "what is told does not change with every look"
    made.run(True)
    made.look(9100.0)
    assert 9100.0 - made.since == 300.0


def test_only_what_was_never_reached_before_is_progress() -> None:
    made = clock()
    made.note({("ready", "decode"): 1, ("left", "a", "decode"): -2})
    for moment, ready, left in ((1010.0, 0, -2), (1020.0, 1, -3), (1030.0, 1, -2)):
        made.look(moment)
        made.note({("ready", "decode"): ready, ("left", "a", "decode"): left})
        assert made.since == 1000.0
    made.note({("ready", "decode"): 2, ("left", "a", "decode"): -2})
    assert made.since == 1030.0
    made.look(1040.0)
    made.note({("ready", "decode"): 2})
    assert made.since == 1040.0, "the former set is gone"
