"""What is printed while a rollout is waited for."""

from __future__ import annotations

import pytest

from kvserving_operator.cli.rollout_lines import QUIET_SECONDS, Lines
from kvserving_operator.cli.rollout_progress import Standing

ROW = ("a1b2c3d4", "yes", "Verified", "1/1", "1/1", "1/1")
WAY_OUT = "Way out: change the spec"
OTHER = ("e5f60718", "no", "-", "0/1", "0/1", "-")


def waiting(message: str, *sets: tuple[str, ...]) -> Standing:
    return Standing("waiting", message, sets)


def test_what_stays_is_told_once_and_then_how_long_it_is_so(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    tell = Lines(lambda _: WAY_OUT, lambda: now[0])
    for _ in range(round(QUIET_SECONDS) * 2 + 5):
        tell(waiting("engines load", ROW))
        now[0] += 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].split()[0] == "REVISION"
    assert said[2:] == ["engines load", "unchanged for 30 s", "unchanged for 60 s"]


def test_where_it_may_never_come_the_way_out_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    tell = Lines(lambda _: WAY_OUT, lambda: now[0])
    for message in ("pod d: CrashLoopBackOff", "pod d: no model"):
        for _ in range(round(QUIET_SECONDS) * 2 + 5):
            tell(Standing("waiting", message, troubled=True))
            now[0] += 1
    quiet = ["unchanged for 30 s", WAY_OUT, "unchanged for 60 s"]
    said = capsys.readouterr().out.splitlines()
    assert said == ["pod d: CrashLoopBackOff", *quiet, "pod d: no model", *quiet]


def test_what_is_new_is_told_at_once_and_the_time_begins_again(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    tell = Lines(lambda _: WAY_OUT, lambda: now[0])
    tell(waiting("engines load", ROW))
    now[0] = QUIET_SECONDS - 1
    tell(waiting("engines load", ROW, OTHER))
    now[0] += 2
    tell(waiting("the traffic moves", ROW, OTHER))
    now[0] += QUIET_SECONDS
    tell(waiting("the traffic moves", ROW, OTHER))
    said = capsys.readouterr().out
    assert said.count("REVISION") == 2
    assert said.endswith("the traffic moves\nunchanged for 30 s\n")


def test_nothing_is_told_of_what_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    tell = Lines(lambda _: WAY_OUT, lambda: now[0])
    tell(Standing("complete", "revision a serves"))
    now[0] = QUIET_SECONDS * 3
    tell(Standing("complete", "revision a serves"))
    assert capsys.readouterr().out == ""
