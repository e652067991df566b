"""What commands say to those who took one thing for another."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from kvserving_operator import cli
from kvserving_operator.cli import verify
from kvserving_operator.local import procfs, verifier
from kvserving_operator.local.state import STARTING, STOPPING, PodState, ServiceDir, State

from .machine import Machine
from .support import Outcome


@pytest.mark.parametrize("command", ["up", "render", "validate"])
def test_a_name_in_place_of_a_file_is_told_what_is_taken_and_which_command_shows_the_service(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run([command, "laptop"]) == 1
    said = capsys.readouterr()
    assert (said.out + said.err).removeprefix("error: ") == (
        "laptop: cannot be read: No such file or directory: the command takes the file of an object, such as "
        "laptop.yaml; `kvserving status laptop` shows the service of that name\n"
    )
    assert cli.run([command, "laptop.yaml"]) == 1
    said = capsys.readouterr()
    assert (said.out + said.err).endswith("laptop.yaml: cannot be read: No such file or directory\n")


def test_logs_of_a_service_that_does_not_run_are_said_to_be_of_an_earlier_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = ServiceDir("svc")
    directory.create()
    log = directory.logs / "svc-decode-0.log"
    log.write_text("line\n")
    ended = time.time() - 600
    os.utime(log, (ended, ended))
    (directory.logs / "svc-prefill-0.log").touch()
    assert cli.run(["logs", "svc", "decode"]) == 0
    said = capsys.readouterr()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ended))
    assert said.out == "line\n"
    assert said.err == f"svc does not run: this is of an earlier run, whose last line is of {when}, 10 min ago\n"
    me = {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())}
    directory.write(State("svc", "r", STARTING, {"url": None}, "python", "tiny", (), me))
    assert cli.run(["logs", "svc"]) == 0
    assert capsys.readouterr().err == ""


BY_FILE = pytest.mark.parametrize("command", [["status"], ["verify"], ["logs"], ["down"], ["cache", "usage"]])


@BY_FILE
def test_a_file_that_became_invalid_is_told_with_the_names_that_do_as_well(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        directory = ServiceDir(name)
        directory.create()
        directory.write(State(name, "r", STARTING, {"url": None}, "python", "tiny", (), {"pid": 1, "start_time": 1.0}))
    file = tmp_path / "one.yaml"
    file.write_text("kind: KVServing")
    assert cli.run([*command, str(file)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: ")
    assert said.endswith("\nname the service instead of its file; there are: one, two\n")


@BY_FILE
def test_a_service_may_be_named_by_the_file_that_it_was_brought_up_from(
    command: list[str], machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*command, machine.file()]) == 1
    assert "service svc on this machine; there are: none; " in capsys.readouterr().err
    assert cli.run([*command, machine.file(more="  decod: {}")]) == 1
    assert "spec.decod: " in capsys.readouterr().err


def test_verify_says_what_it_waits_for_when_it_takes_long(
    directory: ServiceDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    async def at_once(state: State) -> Outcome:
        return Outcome()

    async def late(state: State) -> Outcome:
        async with asyncio.timeout(20):
            while len(told) < 2:
                await asyncio.sleep(0.01)
                told.extend(capsys.readouterr().err.splitlines())
        return Outcome()

    pods = (
        PodState("svc-decode-0", "decode", "127.1.2.4", 8000, ready=True, phase="Ready"),
        PodState("svc-store-0", "store", "127.1.2.5", 8000, ready=True, phase="Ready"),
        PodState("svc-router-0", "router", "127.1.2.6", 8000, phase="Restarting"),
    )
    me = {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())}
    directory.create()
    proof = {"ok": True, "at": 1.0, "lines": ["verified"]}
    directory.write(State("svc", "r", "Degraded", {"url": None}, "python", "tiny", pods, me, proof, updated=4e9))
    monkeypatch.setattr(verifier, "verify", at_once)
    assert cli.run(["verify", "svc"]) == 0
    assert capsys.readouterr() == ("verified: by the test\n", "")
    monkeypatch.setattr(verifier, "verify", late)
    for seconds in ("_FIRST_QUIET_SECONDS", "_QUIET_SECONDS"):
        monkeypatch.setattr(verify, seconds, 0.05)
    assert cli.run(["verify", "svc"]) == 0
    assert {line.partition("] ")[2] for line in told} == {
        "waiting for the probes through svc-decode-0, svc-router-0 (Restarting)"
    }
    assert capsys.readouterr().out == "verified: by the test\n"


@pytest.mark.parametrize(
    ("phase", "of_pod", "awaited"),
    [
        (STARTING, "Loading", "svc-decode-0 (Loading)"),
        (STOPPING, "Stopping", "svc-prefill-0 (Ready), svc-decode-0 (Stopping)"),
    ],
)
def test_a_service_that_does_not_serve_yet_or_any_more_is_not_verified(
    phase: str, of_pod: str, awaited: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = (
        PodState("svc-prefill-0", "prefill", "127.1.2.3", 8000, pid=os.getpid(), ready=True, phase="Ready"),
        PodState("svc-decode-0", "decode", "127.1.2.4", 8000, pid=os.getpid(), phase=of_pod),
    )
    me = {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())}
    directory = ServiceDir("svc")
    directory.create()
    directory.write(State("svc", "r", phase, {"url": None}, "python", "tiny", pods, me, updated=4e9))
    assert cli.run(["verify", "svc"]) == 1
    assert capsys.readouterr().err == (
        f"error: svc is {phase}, so nothing can be verified now: waiting for {awaited}\n"
    )
