"""Progress where no terminal shows a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvserving_operator.cli.view import LiveView, View, pod_line
from kvserving_operator.local.state import DEGRADED, READY, STARTING, STOPPING, VERIFYING, PodState, State


def state(phase: str, *pods: PodState) -> State:
    return State("svc", "r", phase, {"url": None}, "python", "tiny", pods, {"pid": 9})


def pod(role: str, *, ready: bool = False, pid: int | None = 7, phase: str = "Loading") -> PodState:
    return PodState(f"svc-{role}-0", role, "127.1.2.3", 8000, ready=ready, pid=pid, phase=phase)


USUAL = "engines take about a minute on a CPU, longer with large models; `kvserving logs svc -f` shows what they do"
EVERY_5 = list(range(5, 65, 5))


@pytest.mark.parametrize(
    ("shown", "line", "moments"),
    [
        (
            state(STARTING, pod("prefill", ready=True, phase="Ready"), pod("decode")),
            f"svc: Starting for 10 s, waiting for svc-decode-0 (Loading); {USUAL}",
            [10, 35, 60],
        ),
        (
            state(DEGRADED, pod("prefill", ready=True, phase="Ready"), pod("decode")),
            f"svc: Degraded for 10 s, waiting for svc-decode-0 (Loading); {USUAL}",
            [10, 35, 60],
        ),
        (
            state(VERIFYING, pod("decode", ready=True)),
            "svc: Verifying for 10 s, waiting for the verification",
            [10, 35, 60],
        ),
        (
            state(STOPPING, pod("router", pid=None, phase="Stopped"), pod("decode", phase="Stopping")),
            "svc: Stopping for 5 s, waiting for svc-decode-0 (Stopping)",
            EVERY_5,
        ),
        (
            state(STOPPING, pod("decode", pid=None, phase="Stopped")),
            "svc: Stopping for 5 s, waiting for its supervisor (process 9)",
            EVERY_5,
        ),
    ],
)
def test_what_is_waited_for_is_told_soon_then_every_30_seconds_and_every_5_while_it_stops(
    capsys: pytest.CaptureFixture[str], shown: State, line: str, moments: list[int]
) -> None:
    now = 0.0
    view = View("svc", lambda: now)
    view.update(shown)
    capsys.readouterr()
    said = []
    for now in range(5, 65, 5):
        view.update(shown)
        if text := capsys.readouterr().err:
            said.append((now, text))
    assert [at for at, _ in said] == moments
    assert said[0][1] == f"[{said[0][0]:5.1f}s] {line}\n"


def test_a_start_that_takes_minutes_names_the_logs_and_the_option_that_bounds_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    view, live = View("svc", lambda: now), LiveView("svc", lambda: now)
    slow = live._state = state(STARTING, pod("decode"))
    view.update(slow)
    told = "`kvserving logs svc` may say why, `up --timeout 10m` gives up by then"
    for now, said, caption in ((150, "", None), (200, f"; {told}", told)):
        capsys.readouterr()
        view.update(slow)
        waiting = f"svc: Starting for {now} s, waiting for svc-decode-0 (Loading)"
        assert capsys.readouterr().err == f"[{now:5.1f}s] {waiting}{said}\n"
        assert live._table().caption == caption
    served = live._state = state(VERIFYING, pod("decode", ready=True))
    view.update(served)
    now = 600
    capsys.readouterr()
    view.update(served)
    assert capsys.readouterr().err.endswith("waiting for the verification\n"), "its probes have limits of their own"
    assert live._table().caption is None


def test_a_start_tells_how_long_the_last_one_took_and_where_to_look_once(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    view = View("svc", lambda: now)
    again = state(DEGRADED, replace(pod("decode"), loaded=78.2))
    view.update(again)
    for moment in range(5, 65, 5):
        now = moment
        view.update(again)
    said = [line for line in capsys.readouterr().err.splitlines() if "waiting for" in line]
    assert said[0].endswith("(Loading); the last start took 78 s; `kvserving logs svc -f` shows what they do")
    assert len(said) == 3
    assert "the last start" not in "".join(said[1:])


def test_what_a_supervisor_says_of_itself_is_told_once_and_when_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    view = View("svc", lambda: 0.0)
    served = state(READY, pod("decode", ready=True))
    for shown in (served, replace(served, message="the disk is full"), replace(served, message="the disk is full")):
        view.update(shown)
    view.update(served)
    assert capsys.readouterr().err.splitlines()[2:] == [
        "[  0.0s] notice: the disk is full",
        "[  0.0s] notice: the state of svc is written again",
    ]


def test_why_a_pod_is_started_again_stands_in_the_line_and_in_the_table() -> None:
    cause = "exit status 1: no device"
    hurt = PodState("svc-decode-0", "decode", "127.1.2.3", 8000, phase="Restarting", notable="OSError", last_exit=cause)
    assert pod_line(hurt) == f"svc-decode-0: Restarting, OSError, after {cause}"
    view = LiveView("svc")
    view._state = state(STARTING, hurt, replace(hurt, phase="Loading", notable=""))
    assert list(view._table().columns[-1].cells) == [f"OSError, after {cause}", f"last exit: {cause}"]


def test_what_is_waited_for_tells_at_once_how_it_ended_and_where_that_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    view, live = View("svc", lambda: now), LiveView("svc", lambda: now)
    ended = replace(pod("decode"), early=2, losses=0, restarts=2, last_exit="exit status 1: ValueError: too little")
    for phase in (STARTING, DEGRADED):
        shown = live._state = state(phase, ended)
        view.update(shown)
        capsys.readouterr()
        now += 15
        view.update(shown)
        told = "`kvserving logs svc svc-decode-0 --previous` shows how svc-decode-0 ended"
        waiting = (
            "svc-decode-0 (Loading again; ended 2 times before it was ready: exit status 1: ValueError: too little)"
        )
        assert capsys.readouterr().err.partition("] ")[2] == f"svc: {phase} for 15 s, waiting for {waiting}; {told}\n"
        assert live._table().caption == told


@pytest.mark.parametrize(("phase", "line"), [(READY, "verified: KV moved"), (DEGRADED, "not verified: no KV")])
def test_a_service_that_was_up_tells_its_new_proof_after_it_was_verified_again(
    capsys: pytest.CaptureFixture[str], phase: str, line: str
) -> None:
    engine = pod("decode", ready=True, phase="Ready")
    for view in (View("svc", lambda: 0.0), LiveView("svc", lambda: 0.0)):
        first = replace(state(READY, engine), verification={"ok": True, "lines": ["ok", "verified: the first"]})
        again = replace(state(phase, engine), verification={"ok": phase == READY, "lines": ["", line]})
        for shown in (first, state(DEGRADED, pod("decode")), replace(first, phase=VERIFYING), again):
            view.update(shown)
        said = capsys.readouterr().err
        assert "svc: Degraded\n" in said
        assert said.endswith(f"] svc: {phase}; {line}\n")
        assert "the first" not in said


def test_a_stop_tells_what_hurries_it_where_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    for hurry, told in (("", ""), ("Ctrl-C stops at once", " (Ctrl-C stops at once)")):
        view, live = View("svc", lambda: 0.0), LiveView("svc", lambda: 0.0)
        view.hurry = live.hurry = hurry
        live._state = state(STOPPING, pod("decode"))
        view.update(live._state)
        assert capsys.readouterr().err.endswith(f"svc: Stopping{told}\n")
        assert ("Ctrl-C" in str(live._table().title)) == bool(hurry)


def test_a_service_that_is_up_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    view = View("svc", lambda: now)
    view.update(state(READY, pod("decode", ready=True)))
    capsys.readouterr()
    now = 600.0
    view.update(state(READY, pod("decode", ready=True)))
    assert capsys.readouterr().err == ""
