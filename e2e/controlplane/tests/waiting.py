"""Waiting for a state that no watch tells of."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(holds: Callable[[], bool], timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.02)
