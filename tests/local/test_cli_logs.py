"""``kvserving logs`` and ``down`` of what ran before."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from kvserving_operator.local.state import ServiceDir

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
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
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


def test_stopping_what_is_stopped_is_no_error(machine: Machine) -> None:
    folder = machine.folder / "state/svc/logs"
    folder.mkdir(parents=True)
    (folder / "svc-decode-0.log").write_text("old\n")
    done = machine("down", machine.file())
    assert (done.returncode, done.stdout) == (0, f"svc is stopped already; its logs stay in {folder}\n")
    store = machine.folder / "state/claims/svc-l2"
    store.mkdir(parents=True)
    (machine.folder / "state/claims/other-l2").mkdir()
    told = f"what it stored stays in {store}; remove the folder to be rid of it\n"
    assert machine("down", "svc").stdout == f"svc is stopped already; its logs stay in {folder}\n{told}"
    lock = ServiceDir("svc", machine.folder / "state").lock()
    assert lock is not None
    try:
        done = machine("down", "svc")
    finally:
        os.close(lock)
    assert done.returncode == 1
    assert "svc is just being started or stopped by another command" in done.stderr
