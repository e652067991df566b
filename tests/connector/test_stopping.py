"""Stop signals of engines that are process 1 and load."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvserving_connector import stopping

TERM = 1 << (signal.SIGTERM - 1)
ALONE = ["unshare", "--fork", "--pid", "--kill-child"]


def process(folder: Path, command: bytes, caught: int) -> Path:
    (folder / "cmdline").write_bytes(command)
    (folder / "status").write_text(f"Name:\tpython3\nSigIgn:\t{TERM:016x}\nSigCgt:\t{caught:016x}\n")
    return folder


def test_an_engine_without_a_handler_is_waited_for(tmp_path: Path) -> None:
    init = process(tmp_path, b"python3\0vllm\0serve\0", 0)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 5:
            process(tmp_path, b"python3\0vllm\0serve\0", TERM)

    assert stopping.await_heed(60, init=init, clock=lambda: now[0], sleep=sleep)
    assert 5 < now[0] < 6


def test_the_wait_for_an_engine_that_never_has_one_ends(tmp_path: Path) -> None:
    init = process(tmp_path, b"python3\0vllm\0serve\0", TERM >> 1)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    assert not stopping.await_heed(60, init=init, clock=lambda: now[0], sleep=sleep)
    assert 60 <= now[0] < 61


@pytest.mark.parametrize("command", [b"/sbin/init\0", b"/pause\0"])
def test_another_process_1_is_not_waited_for(tmp_path: Path, command: bytes) -> None:
    assert stopping.await_heed(60, init=process(tmp_path, command, 0))


def test_a_machine_without_proc_is_not_waited_for(tmp_path: Path) -> None:
    assert stopping.await_heed(60, init=tmp_path / "missing")


@pytest.mark.parametrize(("heeds", "status"), [(True, 143), (False, 7)])
def test_process_1_ends_at_sigterm_with_our_handler_only(heeds: bool, status: int) -> None:
    """The second case shows that Linux drops the signal: the process ends by itself, later."""
    if os.geteuid() != 0:
        pytest.skip("a PID namespace of its own needs root")
    code = (
        "import os, signal, sys\n"
        "from kvserving_connector.stopping import end_at_sigterm\n"
        "assert os.getpid() == 1\n"
        f"if {heeds}: end_at_sigterm()\n"
        # From a child, as a signal of the container runtime comes from outside.
        "if os.fork() == 0:\n"
        "    os.kill(1, signal.SIGTERM)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "sys.exit(7)\n"
    )
    assert subprocess.run([*ALONE, sys.executable, "-c", code], timeout=60, check=False).returncode == status


def test_a_process_that_is_not_the_first_keeps_its_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stopping.end_at_sigterm()
    assert signal.getsignal(signal.SIGTERM) is before


ENGINE = """
import os, signal, subprocess, sys, threading, time
from kvserving_connector import stopping

def load():  # as vLLM: the first signal is dropped, as where it waits for its ranks
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("dropped", flush=True)

def interrupt(*_):
    raise KeyboardInterrupt

assert os.getpid() == 1
signal.signal(signal.SIGTERM, interrupt)
if INSISTS:
    assert stopping.insist()
threading.Timer(0.2, os.kill, (1, signal.SIGTERM)).start()
load()
try:
    time.sleep(WAIT)
except KeyboardInterrupt:
    sys.exit(143)
sys.exit(7)
"""


@pytest.mark.parametrize(("insists", "wait", "status"), [(True, 60, 143), (False, 2 * stopping.INSIST_SECONDS, 7)])
def test_an_engine_that_dropped_the_signal_gets_it_again(insists: bool, wait: float, status: int) -> None:
    """The second case shows that nobody else repeats it. ``vllm`` stands in the command, as in that of an engine."""
    if os.geteuid() != 0:
        pytest.skip("a PID namespace of its own needs root")
    code = ENGINE.replace("INSISTS", str(insists)).replace("WAIT", str(wait))
    command = [*ALONE, "--mount-proc", sys.executable, "-c", code, "vllm"]
    ended = subprocess.run(command, timeout=120, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (status, "dropped\n"), ended.stderr


@pytest.mark.parametrize("command", [b"/sbin/init\0", b"/pause\0"])
def test_another_process_1_is_sent_nothing(tmp_path: Path, command: bytes) -> None:
    assert not stopping.insist(init=process(tmp_path, command, TERM))
    assert not stopping.insist(init=tmp_path / "missing")


def test_the_signals_end_with_what_they_are_for() -> None:
    sent: list[tuple[int, int]] = []
    slept: list[float] = []

    def kill(pid: int, number: int) -> None:
        if len(sent) == 2:
            raise ProcessLookupError
        sent.append((pid, number))

    stopping.main(sleep=slept.append, kill=kill)
    assert sent == [(1, signal.SIGTERM)] * 2
    assert slept == [stopping.INSIST_SECONDS] * 3
