"""The periodic comparison with the cluster itself, which heals whatever a watch has missed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from ..plan import labels
from .failures import ApiFailure
from .handlers import Handlers
from .kube import Kube
from .observe import Key, Store, key_of, serving_of
from .pauses import spread
from .permissions import SERVING, Resource
from .workqueue import WorkQueue

log = logging.getLogger(__name__)

_SPREAD = 0.1
_FIRST = 60.0


class Resync:
    """Lists every watched kind, corrects the store, and lets every object be reconciled once."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        queue: WorkQueue[Key],
        resources: Callable[[], tuple[Resource, ...]],
        namespaces: tuple[str, ...],
        healed: Callable[[int], None],
        done: Callable[[], None],
    ) -> None:
        self._kube = kube
        self._store = store
        self._queue = queue
        self._resources = resources
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._healed = healed
        self._done = done
        self._asked = asyncio.Event()

    def soon(self) -> None:
        """Let ``run`` make its next comparison at once."""
        self._asked.set()

    async def run(self, interval: float, before: Callable[[], Awaitable[None]]) -> None:
        """Resync every ``interval`` seconds (a tenth more or less), for ever; ``before`` each time.

        The first comes after a minute at most, should no watch have said that it began: what was deleted between
        ``once`` at the start and that moment is known to neither.
        """
        first = True
        while True:
            wait = min(interval, _FIRST) if first else interval
            first = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(spread(wait)):
                    await self._asked.wait()
            self._asked.clear()
            try:
                await before()
                await self.once(interval * _SPREAD)
            except ApiFailure as failure:
                log.warning("resync was cut short: %s", failure)

    async def once(self, spread: float) -> None:
        """Compare all kinds, then let every object be reconciled within ``spread`` seconds. Raises ``ApiFailure``."""
        for resource in self._resources():
            healed = await self._kind(resource)
            if healed:
                log.warning("resync: %d deletions of %s had been missed", healed, resource.full_name)
                self._healed(healed)
        for key in self._store.keys:
            self._queue.add_after(key, random.uniform(0, spread))  # noqa: S311 - spreads load
        self._done()

    async def _kind(self, resource: Resource) -> int:
        known = self._store.known(resource.kind)
        handlers = Handlers(resource, self._store)
        selector = "" if resource is SERVING else labels.NAME
        healed = 0
        for namespace in self._namespaces:
            listed: list[tuple[Key, str, str]] = []
            version = ""
            async for page in self._kube.list(resource, namespace, selector=selector):
                version = page.version
                for body in page.items:
                    key = serving_of(body).key if resource is SERVING else key_of(body)
                    if key is not None:
                        listed.append((key, body["metadata"]["name"], body["metadata"]["uid"]))
                    if (note := handlers.seen(body)) is not None:
                        note()
            expected = [entry for entry in known if namespace is None or entry[0].namespace == namespace]
            healed += self._store.retain(resource.kind, listed, expected, version)
        return healed
