"""The source of events: kopf in a thread and an event loop of its own.

kopf takes over the signals of its thread, and when it ends it waits for every task of its loop, then cancels them.
None of that may meet the work, which is drained at the end. When one watch fails for good, its others go on trying
for as long as they like: the thread is then left to the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import kopf

from . import app
from .observe import Store
from .permissions import Resource

log = logging.getLogger(__name__)

_IDENTITY: Any = "kvserving-operator"
"""For peers, of which there are none; kopf would ask for the name of the user, and a pod's may have none."""
_END_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_MOST_RESTARTS = 5
_WINDOW_SECONDS = 60.0
_FINAL = (401, 403, 404)
"""Answers that a new attempt would get as well: no credentials, no rights, no such kind."""


class SourceEnded(Exception):
    """The watches ended although nobody asked them to; the cause is chained where it is known."""

    @property
    def status(self) -> int:
        """HTTP status of the answer that ended them; 0 where none did."""
        return int(getattr(self.__cause__, "status", None) or 0)


class Source:
    """Watches ``resources`` in ``namespaces`` (all when empty) and keeps ``store`` informed, in the caller's loop.

    ``begun`` is called as the watches of kinds begin: what was deleted before that, no watch tells.
    """

    def __init__(
        self,
        resources: tuple[Resource, ...],
        store: Store,
        login: Callable[[], Any],
        namespaces: tuple[str, ...],
        begun: Callable[[], None],
    ) -> None:
        self._resources = resources
        self._store = store
        self._login = login
        self._namespaces = namespaces
        self._begun = begun
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], None] = lambda: None
        self._stopped = False

    async def run(self) -> None:
        """Watch until ``close``. Raises ``SourceEnded`` when a watch fails for good."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()

        def end(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(error)

        def tell(call: Callable[..., None], *arguments: Any) -> None:
            # The loop is closed when the process ends without waiting for this thread.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(call, *arguments)

        def serve() -> None:
            try:
                asyncio.run(self._serve(tell, end))
            except BaseException as error:
                tell(end, error)
                raise

        self._thread = threading.Thread(target=serve, name="watches", daemon=True)
        self._thread.start()
        error = await ended
        if not self._stopped:
            raise SourceEnded("the watches ended; a line before names the kind whose watch failed") from error

    async def close(self) -> None:
        """End the watches; a thread that does not end soon is left to the end of the process."""
        self._stopped = True
        self._stop()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _END_SECONDS)

    async def _serve(self, tell: Callable[..., None], end: Callable[[BaseException | None], None]) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def request_stop() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)

        self._stop = request_stop
        if self._stopped:
            return
        tasks = await kopf.spawn_tasks(
            registry=app.registry(self._resources, self._store, self._login, tell, self._begun),
            settings=app.settings(self._resources),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            identity=_IDENTITY,
            stop_flag=stop,
        )
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failed = (task.exception() for task in done if not task.cancelled())
        tell(end, next((error for error in failed if error is not None), None))


class Watches:
    """A source that is replaced when it ends for a reason that passes, such as a history that was compacted.

    ``made`` makes a source; ``resync`` has the cluster compared soon, for what was deleted in between.
    """

    def __init__(self, made: Callable[[], Source], resync: Callable[[], None], now: Callable[[], float]) -> None:
        self._made = made
        self._resync = resync
        self._now = now
        self._source: Source | None = None
        self._closed = False

    async def run(self) -> None:
        """Watch until ``close``. Raises ``SourceEnded`` for a reason that stays, or that came again and again."""
        ends: list[float] = []
        while not self._closed:
            self._source = self._made()
            try:
                return await self._source.run()
            except SourceEnded as error:
                ends = [end for end in ends if self._now() - end < _WINDOW_SECONDS] + [self._now()]
                if error.status in _FINAL or len(ends) > _MOST_RESTARTS:
                    raise
                log.warning("%s: %s; watching anew", error, error.__cause__)
            await self._source.close()
            await asyncio.sleep(_PAUSE_SECONDS)
            self._resync()

    async def close(self) -> None:
        """End the watches."""
        self._closed = True
        if self._source is not None:
            await self._source.close()
