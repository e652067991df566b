"""What a killed supervisor left running: found by the mark of its run and by pid with start time, and ended."""

from __future__ import annotations

import signal

from . import procfs, waiting
from .reaper import end_instance
from .state import ServiceDir

_GRACE = 5.0


def end_leftovers(directory: ServiceDir) -> int:
    """End what the last run of a service left, unless its supervisor still runs; how many processes there were.

    Only processes that carry the mark of that run, or have the pid and the start time that
    its state names, are touched.
    """
    state = directory.read()
    if state is None or not state.instance or state.supervised:
        return 0
    ended = end_instance(state.instance, _GRACE)
    named = [pod.pid for pod in state.pods if pod.pid and procfs.is_running(pod.pid, pod.start_time)]
    if named:
        procfs.send(named, signal.SIGTERM)
        if not waiting.all_gone(named, _GRACE):
            procfs.send(named, signal.SIGKILL)
            waiting.all_gone(named, _GRACE)
    return ended + len(named)
