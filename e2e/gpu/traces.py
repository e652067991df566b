"""What a rank's threads and its device did meanwhile, by torch's profiler. Functions of this module are sent there."""

from __future__ import annotations

from typing import Any

_PROFILER: list[Any] = []


def begin(worker: Any) -> None:
    """In a rank: note every call of torch and of the driver, and what the device runs, until ``end``."""
    from torch.profiler import profile

    profiler = profile()
    profiler.start()
    _PROFILER.append(profiler)


def end(worker: Any, file: str) -> None:
    """In a rank: write down what was noted since ``begin``, as Chrome's trace viewer and Perfetto read it."""
    profiler = _PROFILER.pop()
    profiler.stop()
    profiler.export_chrome_trace(file)
