"""Requests that one handoff cannot serve: several prompts, several choices."""

from __future__ import annotations

from typing import Any

import aiohttp

from .asking import Reply, Texts, ask


def odd_bodies(texts: Texts) -> dict[str, dict[str, Any]]:
    """Return completions by name."""
    common = {"model": "tiny", "max_tokens": 16, "return_token_ids": True, "temperature": 0}
    first, second = texts.of(200, seed=1), texts.of(300, seed=2)
    return {
        "two prompts": {**common, "prompt": [first, second]},
        "two choices": {**common, "prompt": first, "n": 2, "temperature": 0.7, "seed": 7},
    }


async def ask_odd(url: str, texts: Texts, **more: Any) -> dict[str, Reply]:
    """Ask each of them."""
    async with aiohttp.ClientSession() as session:
        return {
            name: await ask(session, url, "/v1/completions", {**body, **more})
            for name, body in odd_bodies(texts).items()
        }
