"""``kvserving logs`` and ``down`` of what ran before."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from kvserving_operator import cli
from kvserving_operator.local import procfs, runlogs
from kvserving_operator.local.follow import ended_run
from kvserving_operator.local.logfile import LogFile
from kvserving_operator.local.state import STARTING, PodState, ServiceDir, State

from .machine import Machine


@pytest.mark.parametrize(
    ("option", "inherited"), [("--follow", signal.SIG_DFL), ("-f", signal.SIG_IGN)], ids=["default", "ignored"]
)
def test_logs_follow_what_is_written(machine: Machine, option: str, inherited: signal.Handlers) -> None:
    folder = machine.folder / "state/svc/logs"
    folder.mkdir(parents=True)
    log = folder / "svc-decode-0.log"
    log.write_text("old\n")
    process = subprocess.Popen(
        machine.command("logs", "svc", option, "--tail", "1"),
        env=machine.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, inherited),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "old\n"
        until = time.monotonic() + 20
        # The reader takes its position after the tail; what is written until then is part of neither.
        while not any(
            "inotify" in os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")
        ):
            assert time.monotonic() < until
        with log.open("a") as file:
            file.write("new\n")
        assert process.stdout.readline() == "new\n"
        log.replace(folder / "svc-decode-0.log.1")
        log.write_text("turned over\n")
        assert process.stdout.readline() == "turned over\n"
        with log.open("a") as file:
            file.write("cut")
        runlogs.begin(folder)
        log.write_text("of the next run\n")
        assert process.stdout.readline() == "cut\n"
        assert process.stdout.readline() == "of the next run\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr is not None
        told = process.stderr.read().splitlines()
        assert told[1] == "svc-decode-0 was started anew: what follows is of the new run"
    finally:
        process.kill()
        process.communicate()


def test_logs_that_are_not_there_name_those_that_are(machine: Machine) -> None:
    assert "there are: none" in machine("logs", "nosuch").stderr
    folder = machine.folder / "state/svc/logs"
    folder.mkdir(parents=True)
    for key in ("svc-prefill-0", "svc-decode-0", "svc-decode-1", "supervisor"):
        (folder / f"{key}.log").write_text(f"line of {key}\n")
    done = machine("logs", "nosuch")
    assert (done.returncode, done.stderr) == (
        1,
        "error: no logs of a service nosuch on this machine; there are: svc; `kvserving up FILE` brings one up; "
        "of one in a cluster: `kubectl logs -n NAMESPACE -l kvserving.dev/name=nosuch --prefix`\n",
    )
    done = machine("logs", "svc", "badrole")
    assert (done.returncode, done.stderr) == (
        1,
        "error: svc has no log of badrole; there are: role decode, prefill;"
        " pod svc-decode-0, svc-decode-1, svc-prefill-0; other supervisor\n",
    )
    assert machine("logs", "svc", "supervisor").stdout == "line of supervisor\n"
    assert "supervisor" in machine("logs", "--help").stdout


def test_logs_in_which_nothing_stands_yet_are_said_to_be_empty(machine: Machine) -> None:
    folder = machine.folder / "state/svc/logs"
    folder.mkdir(parents=True)
    for key in ("svc-decode-0", "svc-prefill-0"):
        (folder / f"{key}.log").touch()
    told = "a supervisor in the foreground tells its terminal\n"
    done = machine("logs", "svc", "decode")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith("\nnothing is written yet by svc-decode-0\n")
    missing = machine("logs", "svc", "supervisor")
    assert missing.returncode == 1
    assert missing.stderr.endswith(f"pod svc-decode-0, svc-prefill-0; {told}")
    (folder / "supervisor.log").touch()
    assert machine("logs", "svc", "supervisor").stderr.endswith(f"\nnothing is written yet by supervisor; {told}")
    (folder / "svc-decode-0.log").write_text("line\n")
    some = machine("logs", "svc")
    assert some.stdout == "svc-decode-0 | line\n"
    assert "nothing" not in some.stderr + machine("logs", "svc", "prefill", "--tail", "0").stderr


@pytest.mark.parametrize("options", [(), ("--detach",)], ids=["foreground", "detached"])
def test_of_a_run_that_has_begun_no_line_of_an_earlier_one_is_shown(machine: Machine, options: tuple[str, ...]) -> None:
    folder = machine.folder / "state/svc/logs"
    folder.mkdir(parents=True)
    for name in ("svc-decode-0.log", "svc-decode-0.log.1", "svc-decode-7.log", "supervisor.log"):
        (folder / name).write_text("old\n" * 100)
    up = subprocess.Popen(
        machine.up(machine.file("--never-healthy"), *options), env=machine.env, stderr=subprocess.PIPE, text=True
    )
    try:
        assert up.stderr is not None
        assert any("svc-decode-0: Loading, Loading weights" in line for line in up.stderr)
        shown = machine("logs", "svc", "--tail", "30")
        assert "old" not in shown.stdout
        assert "svc-decode-0 | Loading weights took 0.1 seconds\n" in shown.stdout
        assert "earlier" not in shown.stderr
        assert "svc-decode-7" not in shown.stdout
        assert (folder / "svc-decode-0.log.earlier").read_text() == "old\n" * 100
    finally:
        up.send_signal(signal.SIGINT)
        up.communicate()


def test_logs_of_an_earlier_run_are_said_to_be_that_until_the_next_one_begins(
    directory: ServiceDir, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.create()
    for key in ("svc-decode-0", "supervisor"):
        (directory.logs / f"{key}.log").write_text("old\n")
    lock = directory.lock()
    assert lock is not None
    told = "svc is just being started or stopped by another command"
    try:
        assert cli.run(["logs", "svc", "decode"]) == 0
        out, err = capsys.readouterr()
        assert out == "old\n"
        assert err.startswith(f"{told}: this is of an earlier run, whose last line is of 20")
        runlogs.begin(directory.logs)
        directory.supervisor_log.touch()
        for role in ((), ("decode",), ("supervisor",)):
            assert cli.run(["logs", "svc", *role]) == 1
            assert capsys.readouterr() == ("", f"error: {told}; try again when it is done\n")
        me = {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())}
        pods = (PodState("svc-decode-0", "decode", "127.1.2.3", 8000),)
        directory.write(State("svc", "r", STARTING, {"url": None}, "python", "tiny", pods, me))
        assert cli.run(["logs", "svc", "decode"]) == 1
        assert capsys.readouterr() == ("", f"error: {told}; try again when it is done\n")
        assert cli.run(["logs", "svc"]) == 0
        assert capsys.readouterr().err.startswith("nothing is written yet by supervisor")
    finally:
        os.close(lock)


def test_stopping_what_is_stopped_is_no_error(machine: Machine) -> None:
    folder = machine.folder / "state/svc/logs"
    folder.mkdir(parents=True)
    (folder / "svc-decode-0.log").write_text("old\n")
    done = machine("down", machine.file())
    assert (done.returncode, done.stdout) == (0, f"svc is stopped already; its logs stay in {folder}\n")
    store = machine.folder / "state/claims/svc-l2"
    store.mkdir(parents=True)
    (machine.folder / "state/claims/other-l2").mkdir()
    told = f"what an earlier svc stored stays in {store}; remove the folder to be rid of it\n"
    assert machine("down", "svc").stdout == f"svc is stopped already; its logs stay in {folder}\n{told}"
    lock = ServiceDir("svc", machine.folder / "state").lock()
    assert lock is not None
    try:
        done = machine("down", "svc")
    finally:
        os.close(lock)
    assert done.returncode == 1
    assert "svc is just being started or stopped by another command" in done.stderr


def test_the_run_that_ended_last_is_shown_on_demand_and_the_option_named_where_it_is_not_shown(
    directory: ServiceDir, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.create()
    for role in ("decode", "prefill"):
        log = LogFile(directory.logs / f"svc-{role}-0.log")
        for run in ("first", "second") if role == "prefill" else ():
            log.write(f"of the {run}\nValueError: in the {run}\n".encode())
            log.note_end("svc-prefill-0", f"exit status 1: ValueError: in the {run}")
        log.write(b"loading\nloads\n")
        log.close()
    mark = "svc-prefill-0 has ended: exit status 1: ValueError: in the second"
    hint = f"{mark}; `kvserving logs svc svc-prefill-0 --previous` shows the end of that run\n"
    assert cli.run(["logs", "svc", "prefill", "--tail", "2"]) == 0
    out, err = capsys.readouterr()
    assert (out, err.endswith(hint)) == ("loading\nloads\n", True)
    assert cli.run(["logs", "svc", "prefill", "--tail", "3"]) == 0
    assert "--previous" not in capsys.readouterr().err, "the end is shown"
    assert cli.run(["logs", "svc", "prefill", "--previous"]) == 0
    assert capsys.readouterr().out == f"of the second\nValueError: in the second\n[kvserving] {mark}\n"
    assert cli.run(["logs", "svc", "--previous", "--tail", "1"]) == 0
    assert capsys.readouterr().out == f"svc-prefill-0 | [kvserving] {mark}\n"
    assert cli.run(["logs", "svc", "decode", "--previous"]) == 1
    assert capsys.readouterr().err.endswith("error: svc-decode-0 has not ended: leave out --previous\n")
    assert cli.run(["logs", "svc", "--previous", "-f"]) == 2
    assert "leave out --follow" in capsys.readouterr().err


def test_a_run_that_ended_is_found_also_where_its_log_was_turned_over(directory: ServiceDir) -> None:
    directory.create()
    log = LogFile(directory.logs / "svc-decode-0.log", limit=60)
    log.write(b"the first line of the run\n")
    log.write(b"the second line of the run, the last\n")
    log.note_end("svc-decode-0", "exit status 1")
    assert runlogs.older(log.path).exists()
    log.close()
    assert list(ended_run(log.path))[-2:] == [
        "the second line of the run, the last",
        "[kvserving] svc-decode-0 has ended: exit status 1",
    ]
