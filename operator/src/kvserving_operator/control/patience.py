"""What the operator has to know before it begins, asked again for a while where the apiserver is only busy."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .failures import ApiFailure, describe

log = logging.getLogger(__name__)

_SECONDS = 60.0
_PAUSE = 1.0
_BUSY = (0, 429, 500, 502, 503, 504)

_Answer = TypeVar("_Answer")


async def patiently(
    ask: Callable[[], Awaitable[_Answer]],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> _Answer:
    """Return what ``ask`` does. Raises what it raises, an ``ApiFailure`` that may pass after a minute of them alone.

    An operator that ended of those would start again to ask the same of an apiserver that is as busy.
    """
    until = now() + _SECONDS
    while True:
        try:
            return await ask()
        except ApiFailure as failure:
            if failure.status not in _BUSY or now() > until:
                raise
            log.warning("%s; asking again", describe(failure))
            await sleep(max(_PAUSE, failure.retry_after))
