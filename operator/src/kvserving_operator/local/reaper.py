"""Watch over the death of a supervisor: ``python -m kvserving_operator.local.reaper INSTANCE``.

Standard input is a pipe whose other end the supervisor holds. When it ends, however the
supervisor died, what still carries the mark of the run gets some seconds to stop, then is
killed: children of engines do not end with their parent.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from . import killing, procfs, scratch, shared_memory, waiting

GRACE = 10.0
"""Seconds from the end of the supervisor until what is left is killed."""


def main() -> None:
    """Wait for the end of the supervisor, then see that nothing of the run is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_instance(sys.argv[1], GRACE)


def end_instance(instance: str, grace: float) -> int:
    """Stop every process of a run: SIGTERM, ``grace`` seconds, SIGKILL; return how many there were.

    The run's temporary folder and their shared memory go with them.
    """
    seen: set[int] = set()
    shared: set[Path] = set()
    deadline = time.monotonic() + grace
    while left := procfs.instance_processes(instance):
        fresh = [pid for pid in left if pid not in seen]
        seen.update(left)
        shared |= shared_memory.used(left)
        if time.monotonic() >= deadline:
            killing.kill_all(lambda: procfs.instance_processes(instance))
        else:
            procfs.send([pid for pid in fresh if pid not in procfs.trackers(fresh)], signal.SIGTERM)
            waiting.all_gone(left, max(0.0, deadline - time.monotonic()))
    shared_memory.remove_unused(shared)
    scratch.remove(instance)
    return len(seen)


if __name__ == "__main__":
    main()
