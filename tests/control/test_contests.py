from __future__ import annotations

from kvserving_operator.control.contests import Contests


def test_changes_by_hand_are_undone_at_once_and_a_fight_is_slowed_down() -> None:
    now = [0.0]
    contests = Contests(lambda: now[0])
    assert [contests.pause("u", "d") for _ in range(3)] == [0, 0, 0]
    pauses = []
    for _ in range(8):
        pauses.append(contests.pause("u", "d"))
        now[0] += pauses[-1]
        assert contests.pause("u", "d") == 0
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_another_manifest_another_child_and_quiet_times_are_no_fight() -> None:
    now = [0.0]
    contests = Contests(lambda: now[0])
    for _ in range(3):
        contests.pause("u", "d")
    assert contests.pause("u", "d") > 0
    assert contests.pause("v", "d") == 0
    assert contests.pause("u", "e") == 0
    for _ in range(3):
        contests.pause("w", "d")
    now[0] += 601
    assert contests.pause("w", "d") == 0
