"""What becomes of a command whose output nobody reads any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from kvserving_operator.local import procfs

from .machine import Machine
from .support import nothing_left


@pytest.fixture(autouse=True)
def _buffered_as_users_have_it(machine: Machine) -> None:
    machine.env.pop("PYTHONUNBUFFERED", None)


def up_into_a_pipe(machine: Machine, *options: str, args: str = "") -> tuple[subprocess.Popen[str], list[str]]:
    """``up`` with standard output and error into one pipe; returns with the first pod loading."""
    process = subprocess.Popen(
        machine.up(machine.file(args), *options),
        env=machine.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process, read_until(process, "Loading")


def read_until(process: subprocess.Popen[str], word: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return lines
    raise AssertionError("".join(lines))


@pytest.mark.parametrize("up", [True, False], ids=["when-it-is-up", "while-engines-load"])
def test_ctrl_c_in_a_pipeline_stops_in_drain_order_though_the_reader_died(machine: Machine, up: bool) -> None:
    order = machine.folder / "order"
    process, _ = up_into_a_pipe(machine, args=f"--order={order}")
    assert process.stdout is not None
    if up:
        read_until(process, "Ctrl-C stops it.")
    instance = machine.instance
    # As the terminal does it: the reader dies of the same signal, at the latest when the first word of the stop comes.
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert nothing_left([instance])
    assert not (machine.folder / "state/svc/state.json").exists()
    if up:
        assert order.read_text().split() == ["decode", "prefill"]


def test_up_in_the_foreground_goes_on_when_its_reader_goes_away(machine: Machine) -> None:
    process, _ = up_into_a_pipe(machine)
    assert process.stdout is not None
    process.stdout.close()
    until = time.monotonic() + 60
    while machine.state()["phase"] != "Degraded":
        assert time.monotonic() < until
    instance = machine.instance
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1
    assert nothing_left([instance])


def test_up_detached_goes_on_when_its_reader_goes_away(machine: Machine) -> None:
    process, _ = up_into_a_pipe(machine, "--detach")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 1, "the stand-ins prove nothing"
    state = machine.state()
    assert state["phase"] == "Degraded"
    assert procfs.is_running(state["supervisor"]["pid"], state["supervisor"]["start_time"])


def test_down_stops_everything_though_its_reader_went_away(machine: Machine) -> None:
    machine.result(machine.up(machine.file(), "--detach"))
    instance = machine.instance
    end, pipe = os.pipe()
    os.close(end)
    down = subprocess.run(machine.command("down", "svc"), env=machine.env, stdout=pipe, stderr=pipe, check=False)
    os.close(pipe)
    assert down.returncode == 0
    assert nothing_left([instance])
    assert not (machine.folder / "state/svc/state.json").exists()


@pytest.mark.parametrize("arguments", [["status", "nobody"], ["nosuch"], ["up"]])
def test_an_error_that_nobody_reads_keeps_its_exit_status(machine: Machine, arguments: list[str]) -> None:
    end, pipe = os.pipe()
    os.close(end)
    done = subprocess.run(machine.command(*arguments), env=machine.env, stdout=pipe, stderr=pipe, check=False)
    os.close(pipe)
    assert done.returncode == machine(*arguments).returncode != 0


def test_what_a_full_disk_or_no_stream_takes_fails_no_supervisor(machine: Machine) -> None:
    code = """
import os, sys
from kvserving_operator.local.output import lasting
for kind in ("full", "none"):
    if kind == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    else:
        sys.stderr = None
    with lasting():
        for _ in range(3000):
            print("a line of a supervisor", flush=True)
            print("another", file=sys.stderr)
        print("held back")
open(sys.argv[1], "w").write("reached")
"""
    end = machine.folder / "end"
    done = machine.result([sys.executable, "-c", code, str(end)])
    assert (done.returncode, done.stderr) == (0, "another\n" * 3000)
    assert end.read_text() == "reached"
