"""An aiohttp application that a test serves in a thread, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def served(app: web.Application, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve on a free port of ``host``; yield the port."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    runner = web.AppRunner(app)

    async def begin() -> None:
        await runner.setup()
        await web.TCPSite(runner, host, 0).start()
        started.set()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(begin())
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield int(runner.addresses[0][1])
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
