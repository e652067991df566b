"""Questions to models with several kinds of layers: decode alone beside prefill and decode."""

from __future__ import annotations

import asyncio

import aiohttp
from e2e.local.asking import Question, Reply, Texts, ask
from e2e.local.stage import Service

QUESTIONS = tuple(Question(tokens, chat=False, stream=False) for tokens in (1, 16, 17, 129, 257, 2048))


def both(service: Service, texts: Texts, **more: object) -> tuple[dict[Question, Reply], dict[Question, Reply]]:
    """Ask decode alone, then prefill and decode through the router; salts keep both cold."""
    decode = service.engine_url("decode")

    async def main() -> tuple[dict[Question, Reply], dict[Question, Reply]]:
        async with aiohttp.ClientSession() as session:
            found: list[dict[Question, Reply]] = []
            for url, salt in ((decode, "alone"), (service.url, "moved")):
                found.append({q: await ask(session, url, q.path, q.body(texts, salt, **more)) for q in QUESTIONS})
            return found[0], found[1]

    return asyncio.run(main())
