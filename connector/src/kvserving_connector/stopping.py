"""Stop signals of an engine that is process 1 of its container and is not serving yet.

Linux drops a signal to process 1 that has no handler for it. vLLM handles SIGTERM once it serves: before, while it
imports and loads for seconds to minutes, a pod that is deleted would hold its devices for its whole grace period.

While it loads, vLLM's handler raises KeyboardInterrupt, which is dropped where vLLM waits for its ranks
(``zmq_socket_ctx``, vLLM 0.32): the engine goes on, serves, and nobody sends the signal again. So
``python -m kvserving_connector.stopping`` does, until the container ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

INIT = Path("/proc/1")
_CAUGHT = "SigCgt:"
_POLL_SECONDS = 0.2
INSIST_SECONDS = 5.0
_STATUS = 128 + signal.SIGTERM


def end_at_sigterm() -> None:
    """Let SIGTERM end this process where it is process 1 and nobody handles the signal. vLLM replaces the handler."""
    untouched = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if os.getpid() == 1 and untouched and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_STATUS))


def await_heed(
    timeout: float,
    *,
    init: Path = INIT,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait up to ``timeout`` seconds until SIGTERM would reach the engine; return whether it would.

    True at once where process 1 is no engine: whoever runs it then sends it signals that it cannot miss.
    """
    end = clock() + timeout
    while not _heeds(init):
        if clock() >= end:
            return False
        sleep(_POLL_SECONDS)
    return True


def insist(*, init: Path = INIT) -> bool:
    """Have SIGTERM sent to process 1 every ``INSIST_SECONDS`` for as long as it is there, by a process left behind.

    Return whether; there is none where process 1 is no engine. To be called of an engine that does not serve: it
    has nothing that a second signal could break off.
    """
    try:
        if not _is_engine(init):
            return False
    except OSError:
        return False
    nowhere = subprocess.DEVNULL
    command = [sys.executable, "-m", "kvserving_connector.stopping"]
    subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)  # noqa: S603
    return True


def main(sleep: Callable[[float], None] = time.sleep, kill: Callable[[int, int], None] = os.kill) -> None:
    """Send the signals. Returns where there is no process 1 to send them to; the container's end ends this, too."""
    while True:
        sleep(INSIST_SECONDS)
        try:
            kill(1, signal.SIGTERM)
        except OSError:
            return


def _is_engine(init: Path) -> bool:
    return b"vllm" in (init / "cmdline").read_bytes()


def _heeds(init: Path) -> bool:
    try:
        if not _is_engine(init):
            return True
        lines = (init / "status").read_text().splitlines()
    except OSError:
        return True
    masks = [int(line.removeprefix(_CAUGHT), 16) for line in lines if line.startswith(_CAUGHT)]
    return not masks or bool(masks[0] >> (signal.SIGTERM - 1) & 1)


if __name__ == "__main__":
    main()
