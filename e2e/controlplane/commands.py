"""Programs that are run to their end: whoever breaks the wait off by an exception leaves none of them running."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL of a program that is broken off: debootstrap has mounts to undo."""

SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
"""Whose handlers may break a program off."""


def run(
    command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, merged: bool = False
) -> subprocess.CompletedProcess[str]:
    """Return how the program ended and what it printed; ``merged``: its errors among its output.

    An exception that breaks the wait off, such as one of a signal's handler, goes on when the program has ended, and
    with it all that it started.
    """
    process = None
    # A handler that raised while the program is being started would leave it to nobody.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        out, errors = process.communicate()
    except BaseException:
        if process is not None:
            _end(process)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors or "")


def _end(process: subprocess.Popen[str]) -> None:
    """End the program and its group. Output ends with the last that could write it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + GRACE
        _drain(process, deadline)
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            continue
        break
    # One that closed its output may still be there.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _drain(process: subprocess.Popen[str], deadline: float) -> None:
    """Read what is still written, to its end or the deadline: a ``communicate`` that was broken off cannot go on."""
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if not os.read(key.fd, 2**16):
                    selector.unregister(key.fileobj)
