"""Programs of the control plane as child processes that cannot outlive the test run."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
# The death signal comes when the *thread* that forked ends, so that all children are forked by one thread that lives
# as long as the interpreter: a component restarted from a short-lived thread would otherwise die with that thread.
_FORKER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="controlplane-forker")
_POLL = 0.01


class ComponentFailed(Exception):
    """A program ended or did not become ready; the message ends with the last lines of its log."""


class Component:
    """One program: started, stopped, killed, paused and restarted by name, always with the same arguments.

    ``ready`` is asked until it returns true; it must neither block for long nor raise.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, ready: Callable[[], bool]) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else ``None``."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self, timeout: float = 60) -> None:
        """Start the program and return when it is ready; raise ``ComponentFailed`` after ``timeout`` seconds."""
        if self.pid is not None:
            raise ComponentFailed(f"{self.name} runs already (pid {self.pid})")
        self._process = _FORKER.submit(self._spawn).result()
        self.wait_ready(timeout)

    def wait_ready(self, timeout: float = 60) -> None:
        """Return when the program answers as ready; raise ``ComponentFailed`` when it ends or is late."""
        deadline = time.monotonic() + timeout
        while not self._ready():
            code = self._process.poll() if self._process is not None else None
            if self._process is None or code is not None:
                raise ComponentFailed(f"{self.name} ended with {code} before it was ready\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ComponentFailed(f"{self.name} is not ready after {timeout:.0f} s\n{self.tail()}")
            time.sleep(_POLL)

    def stop(self, grace: float = 10) -> None:
        """Ask the program to end, kill it after ``grace`` seconds, and return when it is gone."""
        self._end(signal.SIGTERM, grace)

    def kill(self) -> None:
        """Kill the program, as a crash would, and return when it is gone."""
        self._end(signal.SIGKILL, 10)

    def restart(self, *, downtime: float = 0) -> None:
        """Kill the program, leave it down for ``downtime`` seconds and start it again on the same port and data."""
        self.kill()
        time.sleep(downtime)
        self.start()

    def pause(self) -> None:
        """Freeze the program and return when it stands: its connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)
        # The signal is on its way when it was sent; a request could still be answered until all threads stand.
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Undo ``pause``."""
        self._signal(signal.SIGCONT)

    def tail(self, lines: int = 25) -> str:
        """Return the last ``lines`` lines of the log, headed by its name."""
        text = self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []
        return "\n".join([f"--- {self.name} ({self.log})", *text])

    def _spawn(self) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        def tie_to_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=tie_to_parent,
            )

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            raise ComponentFailed(f"{self.name} does not run\n{self.tail()}")
        self._process.send_signal(number)

    def _end(self, number: signal.Signals, grace: float) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        # A stopped process takes no signal but SIGKILL until it is continued.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
