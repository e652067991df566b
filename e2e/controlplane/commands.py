"""Programs that are run to their end: whoever breaks the wait off by an exception leaves none of them running."""

from __future__ import annotations

import os
import signal
import subprocess
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
        # One that is broken off before it has set itself up cannot be called again, as ``_end`` does.
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=0)
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
        try:
            process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            continue
        break
    # One that closed its output may still be there.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
