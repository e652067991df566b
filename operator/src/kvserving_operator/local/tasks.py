"""Ending tasks of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` and return once it has ended, however it ended."""
    task.cancel()
    await asyncio.wait({task})
