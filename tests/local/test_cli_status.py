"""What ``kvserving status`` says of a service that is not as it was, and of one that is not there yet."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvserving_operator import cli
from kvserving_operator.local import procfs
from kvserving_operator.local.state import DEGRADED, FAILED, READY, STARTING, PodState, ServiceDir, State

UP = "`kvserving up FILE` brings one up"
NOTHING = f"nothing runs on this machine; {UP}, `kubectl kvserving status` shows the objects of a cluster\n"
PROOF = ("ok     svc-prefill-0 -> svc-decode-0  16 tokens", "verified: KV moved")


def me() -> dict[str, Any]:
    return {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())}


def pod(role: str, **more: Any) -> PodState:
    shown = {"pid": os.getpid(), "ready": True, "phase": "Ready", **more}
    return PodState(f"svc-{role}-0", role, "127.1.2.3", 8000, **shown)


def written(place: ServiceDir, phase: str, *pods: PodState, **more: Any) -> None:
    place.create()
    proof = {"ok": True, "at": time.time() - 40, "lines": list(PROOF)}
    fields = {
        "verification": proof,
        "updated": time.time(),
        "directory": str(place.path),
        "supervisor": me(),
        **more,
    }
    place.write(State("svc", "r", phase, {"url": None}, "python", "tiny", pods, **fields))


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert cli.run(["status", *arguments]) == status
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("decode", "told"),
    [
        ({"ready": False, "phase": "Restarting", "pid": None, "ended": 4e9}, ", before svc-decode-0 ended:"),
        ({"ended": 4e9}, ", before svc-decode-0 ended:"),
        ({"ready": False, "phase": "NotReady", "ended": 1.0}, "; svc-decode-0 has not ended, and is not ready now:"),
    ],
)
def test_a_proof_that_is_older_than_the_present_processes_is_told_as_past(
    directory: ServiceDir, capsys: pytest.CaptureFixture[str], decode: dict[str, Any], told: str
) -> None:
    written(directory, DEGRADED, pod("prefill"), pod("decode", **decode))
    lines = said(capsys, "svc").splitlines()
    assert lines[-3:] == [f"  last verified 40 s ago{told}", *(f"    {line}" for line in PROOF)]


def test_the_proof_of_a_lost_service_is_told_as_past(directory: ServiceDir, capsys: pytest.CaptureFixture[str]) -> None:
    written(directory, READY, pod("prefill"), pod("decode"), supervisor={"pid": os.getpid(), "start_time": 1})
    assert "  last verified 40 s ago, before its supervisor was killed:\n    ok " in said(capsys, "svc", status=1)


def test_a_proof_that_holds_is_told_with_its_moment(directory: ServiceDir, capsys: pytest.CaptureFixture[str]) -> None:
    written(directory, READY, pod("prefill"), pod("decode", ended=1.0))
    shown = said(capsys, "svc")
    assert "  verified: KV moved\n  checked at " in shown
    assert "last verified" not in shown


def test_a_failed_service_among_others_is_told_in_short(
    directory: ServiceDir, capsys: pytest.CaptureFixture[str]
) -> None:
    message = (
        "svc-decode-0 ended 3 times before it was ready: exit status 1. Its last lines:\n"
        "  | Traceback (most recent call last):\n"
        '  |   File "a.py", line 1, in <module>\n'
        "  | (EngineCore pid=7) ValueError: the first\n"
        "  | RuntimeError: no device\n"
        "  | [rank0]: a last word\n"
        "The whole log: /logs/svc-decode-0.log"
    )
    written(directory, FAILED, message=message, verification=None)
    assert said(capsys).splitlines()[1:] == [
        "  svc-decode-0 ended 3 times before it was ready: exit status 1.",
        "  RuntimeError: no device",
        "  The whole log: /logs/svc-decode-0.log",
        "  `kvserving status svc` shows all of it",
    ]
    assert said(capsys, "svc", status=1).splitlines()[1:] == [f"  {line}" for line in message.splitlines()]


@pytest.mark.parametrize(
    ("phase", "supervisor", "status"),
    [
        (STARTING, me(), 0),
        (READY, me(), 0),
        (DEGRADED, me(), 0),
        (FAILED, me(), 1),
        (READY, {"pid": os.getpid(), "start_time": 1}, 1),
    ],
)
def test_the_exit_status_tells_of_the_named_service_whether_it_is_over(
    directory: ServiceDir, capsys: pytest.CaptureFixture[str], phase: str, supervisor: dict[str, Any], status: int
) -> None:
    written(directory, phase, pod("prefill"), supervisor=supervisor)
    said(capsys, "svc", status=status)
    said(capsys, "svc", "-o", "json", status=status)
    said(capsys)


def test_a_process_that_has_just_gone_is_told_as_ended_before_its_supervisor_writes_it(
    directory: ServiceDir, capsys: pytest.CaptureFixture[str]
) -> None:
    own = procfs.start_time(os.getpid())
    gone = {"start_time": 1}
    written(directory, READY, pod("prefill", start_time=own), pod("decode", **gone), pod("router", start_time=own))
    lines = said(capsys, "svc").splitlines()
    assert lines[0].startswith("svc  Degraded  ")
    assert "  not ready: svc-decode-0" in lines
    loading = pod("decode", **gone, ready=False, phase="Loading", notable="Application startup complete")
    written(directory, READY, pod("prefill", start_time=own), loading, pod("router", start_time=own))
    assert "  not ready: svc-decode-0" in said(capsys, "svc").splitlines()
    late = pod("decode", start_time=own, ready=False, phase="NotReady", notable="no answer within 5 s")
    written(directory, READY, pod("prefill", start_time=own), late, pod("router", start_time=own))
    assert "  not ready: svc-decode-0 (no answer within 5 s)" in said(capsys, "svc").splitlines()
    (row,) = (line.split() for line in lines if line.startswith("  svc-decode-0"))
    assert row[2:4] == ["no", "Ended"]
    assert row[5:7] == ["-", "-"]
    assert "  last verified 40 s ago, before svc-decode-0 ended:" in lines
    written(directory, READY, pod("prefill", start_time=own), pod("decode", start_time=own))
    assert said(capsys, "svc").startswith("svc  Ready  ")


@pytest.mark.parametrize(
    ("disk", "why"),
    [
        ({"f_bavail": 1}, "the disk of {folder} is full. Free some space; the service goes on"),
        ({"f_files": 100, "f_favail": 0}, "the disk of {folder} is full. Free some space; the service goes on"),
        ({"f_flag": os.ST_RDONLY}, "the disk of {folder} is read-only"),
        ({}, "it stands still, or may not write into {folder}"),
    ],
)
def test_a_state_that_is_old_says_how_old_and_why(
    directory: ServiceDir,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    disk: dict[str, int],
    why: str,
) -> None:
    written(directory, READY, pod("prefill"), updated=time.time() - 20, verification=None)
    sound = {"f_flag": 0, "f_bavail": 10**6, "f_frsize": 4096, "f_files": 0, "f_favail": 0}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**sound, **disk}))
    assert said(capsys, "svc").splitlines()[1] == (
        f"  what stands here is old: its supervisor has written nothing for 20 s: {why.format(folder=directory.path)}"
    )


def test_a_folder_that_went_away_is_why_a_state_is_old(directory: ServiceDir, tmp_path: Path) -> None:
    from kvserving_operator.local import client

    written(directory, READY, updated=1.0, directory=str(tmp_path / "gone"))
    state = directory.look()
    assert state is not None
    assert client.as_now(state).message.endswith(
        f"its folder cannot be used: No such file or directory: {tmp_path / 'gone'}"
    )


def test_every_command_says_that_a_service_is_just_being_started(
    directory: ServiceDir, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = directory.lock()
    assert lock is not None
    told = "svc is just being started or stopped by another command; try again when it is done\n"
    try:
        for command in ("status", "verify", "logs", "down"):
            assert cli.run([command, "svc"]) == 1
            assert capsys.readouterr().err == f"error: {told}"
        assert said(capsys) == told
    finally:
        os.close(lock)
    assert said(capsys) == NOTHING


def test_every_command_says_how_to_bring_up_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "verify", "logs", "down"):
        assert cli.run([command, "nobody"]) == 1
        told = capsys.readouterr().err
        assert f"there are: none; {UP}" in told
        assert (f"`kubectl kvserving {command} nobody`" in told) == (command in ("status", "verify"))
    assert said(capsys) == NOTHING
