"""Which resourceVersion the apiserver had when, so that a proxy can serve its state of some seconds ago."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import time

from e2e.controlplane.api import ApiError
from e2e.controlplane.cluster import Cluster
from urllib3.exceptions import HTTPError


class History:
    """Looks at the apiserver's version every ``interval`` seconds (never, if 0) and remembers it with the time."""

    def __init__(self, cluster: Cluster, interval: float) -> None:
        self._cluster = cluster
        self._interval = interval
        self._times: list[float] = []
        self._versions: list[str] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take the first look and start looking."""
        if self._interval:
            await self._look()
            self._task = asyncio.create_task(self._keep_looking())

    async def stop(self) -> None:
        """Stop looking; raise what ended it before, if anything did."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def version_of(self, seconds: float) -> str:
        """Return the version of ``seconds`` ago, or the oldest known."""
        if not self._versions:
            raise LookupError("this proxy keeps no history: give it a history_interval")
        index = bisect.bisect_right(self._times, time.monotonic() - seconds) - 1
        return self._versions[max(index, 0)]

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self._look()

    async def _look(self) -> None:
        at = time.monotonic()
        try:
            # A list without a version is the latest state, and its version is that of the whole store.
            listed = await asyncio.to_thread(self._cluster.api.get, "/api/v1/namespaces", limit=1)
        except (ApiError, OSError, HTTPError):
            # Down for a test's purpose: the version cannot have moved, the next look tells.
            return
        self._times.append(at)
        self._versions.append(str(listed["metadata"]["resourceVersion"]))
