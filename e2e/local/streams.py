"""Constant load: so many clients, each with one stream, that ask again as soon as their stream has ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import aiohttp

WHOLE = "whole"
CUT = "cut off in the middle of its answer"
_DONE = b"data: [DONE]"
_CHUNK = b'"finish_reason":'
_TIMEOUT = 120.0
_PAUSE = 0.25
"""Seconds until a client asks again that got no answer: one that is refused at once must not spin."""


@dataclass
class Streams:
    """``clients`` of completions. ``choose`` gives the address of each request, ``body`` its body by its number.

    ``outcomes`` counts how requests ended: ``WHOLE`` with every chunk, ``CUT`` after the answer had begun, anything
    else without one. A router ends a stream whose engine died with an event of its own and a proper end, so ``chunks``
    are counted: those that a whole answer has at least. The first requests are spread over ``spread`` seconds, and a
    client rests for ``rest`` seconds after an answer. ``last_loss`` is when the last request ended that was not
    answered whole, by the monotonic clock.
    """

    clients: int
    choose: Callable[[], str]
    body: Callable[[int], Mapping[str, Any]]
    chunks: int
    spread: float = 1.0
    rest: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    last_loss: float = 0.0
    _over: Event = field(default_factory=Event)

    @contextmanager
    def flowing(self) -> Iterator[Streams]:
        """Ask from another thread while the block runs; at its end let the streams that run finish."""
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(lambda: asyncio.run(self._run()))
            try:
                yield self
            finally:
                self._over.set()
            asking.result()

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        # A connection for each request, so that each may meet another router.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            await asyncio.gather(*(self._client(session, number) for number in range(self.clients)))

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        await asyncio.sleep(number / self.clients * self.spread)
        while not self._over.is_set():
            outcome = await self._ask(session, number)
            self.outcomes[outcome] += 1
            number += self.clients
            if outcome != WHOLE:
                self.last_loss = time.monotonic()
            await asyncio.sleep(self.rest if outcome == WHOLE else _PAUSE)

    async def _ask(self, session: aiohttp.ClientSession, number: int) -> str:
        try:
            url = f"{self.choose()}/v1/completions"
        except LookupError:
            return "nobody stands behind the Service"
        try:
            async with session.post(url, json={**self.body(number), "stream": True}) as answer:
                text = await answer.read()
                if answer.status != 200:
                    return f"{answer.status}: {text[:120]!r}"
                return WHOLE if _DONE in text and text.count(_CHUNK) >= self.chunks else CUT
        except aiohttp.ClientPayloadError:
            return CUT
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"
