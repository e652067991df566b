"""The asynchronous client of the fake kubelet: it keeps trying while the apiserver is away, as a kubelet does."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from e2e.controlplane.api import APPLY, MERGE, ApiError

Json = dict[str, Any]
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class NodeApi:
    """Requests that are retried on connection errors, 429 and 5xx until they are answered."""

    def __init__(self, server: str, context: ssl.SSLContext | None, token: str | None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connector = aiohttp.TCPConnector(limit=16, ssl=True if context is None else context)
        self._server = server
        self._session = aiohttp.ClientSession(connector=connector, headers=headers)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        gone_is_fine: bool = False,
    ) -> Json:
        """Send a request until it is answered; raise ``ApiError`` for an answer of 400 or above.

        ``gone_is_fine``: the object was deleted, or replaced by one of its name, meanwhile: return ``{}``.
        """
        pause = _FIRST_PAUSE
        data = None if body is None else json.dumps(body)
        while True:
            try:
                async with self._session.request(
                    method, self._server + path, data=data, params=query, headers={"Content-Type": content_type}
                ) as answer:
                    found = await answer.json(content_type=None)
                    if answer.status < 400:
                        return dict(found)
                    if gone_is_fine and answer.status in (404, 409):
                        return {}
                    if answer.status != 429 and answer.status < 500:
                        raise ApiError(answer.status, found, f"{method} {path}")
            except (aiohttp.ClientError, ValueError):
                # Down, or cut in the middle of an answer: the next attempt tells.
                pass
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def merge(self, path: str, patch: Json, *, gone_is_fine: bool = False) -> Json:
        """Merge-patch the object at ``path``."""
        return await self.request("PATCH", path, patch, content_type=MERGE, gone_is_fine=gone_is_fine)

    async def apply(self, path: str, obj: Json) -> Json:
        """Server-side apply the object at ``path``."""
        query = {"fieldManager": "fake-kubelet", "force": "true"}
        return await self.request("PATCH", path, obj, query=query, content_type=APPLY)

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[Json]:
        """Yield events until the server ends the watch; raise ``aiohttp.ClientError`` when the connection breaks."""
        timeout = aiohttp.ClientTimeout(total=None)
        params = {**query, "watch": "true"}
        async with self._session.get(self._server + path, params=params, timeout=timeout) as answer:
            answer.raise_for_status()
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
