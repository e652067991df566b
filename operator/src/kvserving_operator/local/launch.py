"""Start a program that does not outlive its starter: ``launch.py PARENT_PID PROGRAM ARGUMENT...``.

Runs as a file with ``python -I -S``, so that it imports nothing of ours. It asks the kernel
for SIGTERM when the starter dies, also by SIGKILL, allows as many open files as the system
does, as in a container, and becomes the program. A function in the forked child would do
the same, but is not safe in a process that has threads.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the program; exit status 127 when it cannot be started."""
    parent, program, *arguments = sys.argv[1:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(0)  # the starter died before the request to the kernel
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        os.execvp(program, [program, *arguments])  # noqa: S606
    except OSError as error:
        print(f"cannot start {program}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


main()
