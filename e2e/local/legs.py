"""The two legs of a request without a router, so that a test chooses the pair."""

from __future__ import annotations

from typing import Any

import aiohttp

from kvserving_operator.verify.legs import PREFILL_PARAMS

from .asking import REQUEST_SECONDS, Reply, ask


async def handoff(session: aiohttp.ClientSession, prefill: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send the prefill leg; return the parameters for decode."""
    leg = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": dict(PREFILL_PARAMS)}
    timeout = aiohttp.ClientTimeout(REQUEST_SECONDS)
    async with session.post(prefill + path, json=leg, timeout=timeout) as response:
        answer = await response.json()
        assert response.status == 200, answer
        params: dict[str, Any] = answer["kv_transfer_params"]
        return params


async def through_pair(
    session: aiohttp.ClientSession, prefill: str, decode: str, path: str, body: dict[str, Any]
) -> Reply:
    """Send both legs; return decode's answer."""
    params = await handoff(session, prefill, path, body)
    return await ask(session, decode, path, {**body, "kv_transfer_params": params})
