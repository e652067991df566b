"""Waiting with pauses, instead of polling: on the cores that CPU engines and their neighbours compute on, and on
Python's lock where another thread of the process does what is waited for.

NIXL's Python API starts the thread with a delay of 0, so that it takes a whole core from the first transfer on. On a
GPU host that core is spare; a CPU engine computes on it, and its neighbours do. The thread wakes on events anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvserving_connector.settings import logger

DELAY_MICROSECONDS = 5000
_CONFIG = "nixlAgentConfig"
_DELAY = "pthrDelay"


@contextmanager
def patient_progress_thread(agent_class: Any) -> Iterator[None]:
    """Give agents of ``agent_class`` that are made inside a progress thread that pauses for ``DELAY_MICROSECONDS``.

    The API has no argument for it, so its configuration class is replaced meanwhile. A NIXL without that class or
    without the setting is left as it is, with a line in the log.
    """
    bindings = getattr(agent_class.__init__, "__globals__", {}).get("nixlBind")
    original = getattr(bindings, _CONFIG, None)
    if original is None or not hasattr(original, _DELAY):
        logger.warning("KVServing connector: this NIXL has no %s; its progress thread takes a whole core", _DELAY)
        yield
        return

    class PatientConfig(original):  # type: ignore[misc, valid-type]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, max(value, DELAY_MICROSECONDS) if name == _DELAY else value)

    setattr(bindings, _CONFIG, PatientConfig)
    try:
        yield
    finally:
        setattr(bindings, _CONFIG, original)


YIELD_SECONDS = 0.0005
_YIELD = "sched_yield"


def patient_messages(channel: Any) -> None:
    """Let this process sleep between looks at the messages of vLLM's engine core and workers, for good.

    ``channel`` is vLLM's module of shared-memory messages. Both ends look without a pause for a second after each
    message, and an engine that waits for a transfer, or for its own KV to be fetched, sends some all the time: on two
    cores prefill's two processes then kept decode's from running until the lease was over. A module without the
    function is left as it is, with a line in the log.
    """
    if not callable(getattr(channel, _YIELD, None)):
        logger.warning("KVServing connector: this vLLM has no %s; waiting engines take whole cores", _YIELD)
        return
    setattr(channel, _YIELD, lambda: time.sleep(YIELD_SECONDS))


IDLE = "kvserving_idle"
"""Attribute of vLLM's step metadata: the step computes nothing, which the order of its hooks does not tell."""
IDLE_STEP_SECONDS = 0.005
PULL_STEP_SECONDS = 0.001


def mark_idle(metadata: Any, scheduler_output: Any) -> None:
    """Note in a step's metadata that it computes nothing, where it does not."""
    if not scheduler_output.total_num_scheduled_tokens:
        setattr(metadata, IDLE, True)


def last_a_moment(metadata: Any, pull_ended: Callable[[float], bool], *, patient: bool) -> None:
    """Let a worker's step that computes nothing last until a staged read has ended, a moment at most.

    Such a step looks only whether a transfer has ended. Without a pause its thread takes Python's lock again and again:
    the threads that read a staged prompt and that meet another engine wait for it, on two cores for as long as a lease.
    ``pull_ended`` waits so many seconds at most for the end of one of the reads under way, and returns whether there
    are any. Where there are none, only ``patient`` steps last, those of CPU engines.
    """
    if not getattr(metadata, IDLE, False):
        return
    if not pull_ended(IDLE_STEP_SECONDS if patient else PULL_STEP_SECONDS) and patient:
        time.sleep(IDLE_STEP_SECONDS)
