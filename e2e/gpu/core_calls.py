"""What an engine's core calls, noted in its own process. Functions of this module are sent there by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

Call = tuple[str, float, float, int]
"""What was called, from, to, and how many: tokens of a schedule, requests whose load has ended."""
_CALLS: list[Call] = []


def watch(worker: Any = None) -> None:
    """Note every call of the core and of the rank that are in this process, from now on: one of them, or both."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
    from vllm.v1.core.sched.scheduler import Scheduler

    # Of the class: vLLM hides its own objects from the collector, and so from a search.
    _note(Scheduler, "schedule", lambda found: found.total_num_scheduled_tokens)
    _note(Scheduler, "update_from_output", lambda _: 0)
    if has_kv_transfer_group():
        connector = get_kv_transfer_group()
        _note(connector, "start_load_kv", lambda _: 0)
        _note(connector, "get_finished", lambda found: len(found[1] or ()))
        if hasattr(connector, "get_transfer_results"):
            _note(connector, "get_transfer_results", lambda found: len(found.finished_recving or ()))


def _note(owner: Any, name: str, number: Callable[[Any], int]) -> None:
    inner = getattr(owner, name)
    if getattr(inner, "noted", False):
        return

    @wraps(inner)
    def noted(*arguments: Any, **more: Any) -> Any:
        began = time.perf_counter()
        found = inner(*arguments, **more)
        _CALLS.append((name, began, time.perf_counter(), number(found)))
        return found

    noted.noted = True  # type: ignore[attr-defined]
    setattr(owner, name, noted)


def taken(worker: Any = None) -> list[Call]:
    """Return the calls in this process since the last time."""
    found = list(_CALLS)
    _CALLS.clear()
    return found
