"""NIXL's progress thread on CPU engines: waiting for events instead of polling without a pause.

NIXL's Python API starts the thread with a delay of 0, so that it takes a whole core from the first transfer on. On a
GPU host that core is spare; a CPU engine computes on it, and its neighbours do. The thread wakes on events anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
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
