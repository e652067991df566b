"""Requests to one service of the lane: through its router, or by the two legs to engines of one's choice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from e2e.local.asking import Reply, Texts, ask
from e2e.local.legs import handoff
from e2e.local.stage import Service

from .counted import counters, gauges, since, slots_in_use
from .engine import Answer, made
from .shapes import MODEL, Shape
from .worker_cache import TIE

PATH = "/v1/completions"
ANSWER = 16
IDLE_SECONDS = 60.0
SERVED_SECONDS = 90.0
_STREAMS = {"gpu": 16, "cpu": 4}


@dataclass
class Asked:
    """Asks ``service``. ``name`` keeps its prompts apart from those of others in every cache."""

    service: Service
    shape: Shape
    texts: Texts
    session: aiohttp.ClientSession
    name: str

    @property
    def prefill(self) -> str:
        """Address of the prefill engine."""
        return self.service.engine_url("prefill")

    @property
    def decode(self) -> str:
        """Address of the decode engine."""
        return self.service.engine_url("decode")

    def body(self, prompt: str | Sequence[int], salt: str, tokens: int = ANSWER, **more: Any) -> dict[str, Any]:
        """Return a request that no other salt shares a cache with."""
        return {
            "model": MODEL,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "cache_salt": f"{self.name} {salt}",
            **more,
        }

    def compare(self, right: Sequence[Answer], found: Sequence[Answer]) -> dict[str, Any]:
        """Compare with the yardstick's answers; see ``compare``."""
        return compare(right, found, None if self.shape.exact else TIE)

    async def routed(self, prompt: str, salt: str, tokens: int = ANSWER, **more: Any) -> Answer:
        """Return the router's answer."""
        return answered(await ask(self.session, self.service.url, PATH, self.body(prompt, salt, tokens, **more)))

    async def leads(self, prompt: str, tokens: int = ANSWER) -> Answer:
        """Return the router's answer with the lead of each token over the next best."""
        return await self.routed(
            prompt, f"cold {prompt[:40]} {len(prompt)}", tokens, logprobs=2, return_tokens_as_token_ids=True
        )

    async def handed(self, prompt: str | Sequence[int], salt: str) -> dict[str, Any]:
        """Compute the prompt on prefill; return the parameters for decode."""
        return await handoff(self.session, self.prefill, PATH, self.body(prompt, salt))

    async def fetched(
        self, prompt: str | Sequence[int], salt: str, params: dict[str, Any], tokens: int = 1, url: str = ""
    ) -> Answer:
        """Return the answer on top of what prefill keeps, of decode or of the engine at ``url``."""
        body = self.body(prompt, salt, tokens, kv_transfer_params=params)
        return answered(await ask(self.session, url or self.decode, PATH, body))

    async def handed_plain(self, prompt: Sequence[int], salt: str) -> None:
        """Compute the prompt on prefill and hand it to nobody."""
        await ask(self.session, self.prefill, PATH, self.body(prompt, salt, 1))

    async def transfer(self, tokens: int, salt: str) -> dict[str, float]:
        """Move one prompt; return the seconds of prefill, of decode's leg and of a hit in decode's own cache."""
        prompt = made(f"{self.name} {salt}", tokens)
        before = await counters(self.decode)
        started = time.perf_counter()
        params = await self.handed(prompt, salt)
        handed = time.perf_counter()
        await self.fetched(prompt, salt, params)
        fetched = time.perf_counter()
        await ask(self.session, self.decode, PATH, self.body(prompt, salt, 1))
        hit = time.perf_counter()
        times = {"prefill": handed - started, "decode": fetched - handed, "hit": hit - fetched}
        counted = since(before, await counters(self.decode))
        return {name: round(value, 6) for name, value in times.items()} | counted

    async def scatter(self, salt: str) -> None:
        """Send other prompts of many lengths to each engine, so that free blocks are no longer in order."""
        number, fewest, most = self.shape.scatter
        chosen = random.Random(salt)
        sizes = [(chosen.randint(fewest, most), chosen.randint(1, ANSWER)) for _ in range(number)]
        turns = asyncio.Semaphore(_STREAMS[self.shape.device])

        async def one(url: str, at: int, prompt: int, tokens: int) -> None:
            async with turns:
                name = f"scatter {salt} {at}"
                await ask(self.session, url, PATH, self.body(made(name, prompt), name, tokens))

        urls = (self.prefill, self.decode)
        await asyncio.gather(*(one(url, at, *size) for at, size in enumerate(sizes) for url in urls))

    async def served(self) -> float:
        """Wait until the router answers; return the seconds. It takes an engine back some time after it is ready.

        Raises the last refusal after ``SERVED_SECONDS``.
        """
        started = time.monotonic()
        while True:
            try:
                await self.routed(self.texts.of(20), f"served {time.monotonic()}", 1)
            except AssertionError:
                if time.monotonic() - started > SERVED_SECONDS:
                    raise
                await asyncio.sleep(0.5)
            else:
                return round(time.monotonic() - started, 1)

    async def idle(self) -> dict[str, Any]:
        """Wait until no engine holds KV or a staging slot; return what is held in the end, and after how long."""
        started = time.monotonic()
        while True:
            held = {}
            for role, url in (("prefill", self.prefill), ("decode", self.decode)):
                # An engine tells what it holds when it runs a step.
                await ask(self.session, url, PATH, self.body([1, 2, 3], f"nudge {time.monotonic()}", 1))
                usage, requests = await gauges(url)
                held[role] = {"usage": usage, "requests": requests}
            slots = slots_in_use(await counters(self.prefill))
            # Under kvcached, usage has what the prefix cache keeps.
            told = ("requests",) if self.name.startswith("kvcached") else ("usage", "requests")
            still = slots != 0 or any(each[name] for each in held.values() for name in told)
            waited = time.monotonic() - started
            if not still or waited > IDLE_SECONDS:
                return {"idle": not still, "after": round(waited, 1), "slots": slots, **held}
            await asyncio.sleep(0.5)


def answered(reply: Reply) -> Answer:
    """Return a reply of one choice with the leads of its tokens, none where it has no logprobs."""
    leads = []
    for position in reply.logprobs:
        first, second, *_ = sorted(position.values(), reverse=True)
        leads.append(round(first - second, 4))
    return Answer(reply.ids[0], tuple(leads))


def compare(right: Sequence[Answer], found: Sequence[Answer], tie: float | None = TIE) -> dict[str, Any]:
    """Count answers that are equal, that part at a near tie, and that are others; ``parted``: leads where they part.

    ``right`` has leads; those up to ``tie`` are near. Rounding turns near ties over: decode computes the last prompt
    token by itself, other kernels than those of a whole prompt. None where nothing may be turned over.
    """
    parted = []
    for one, other in zip(right, found, strict=True):
        at = next((at for at, (a, b) in enumerate(zip(one.ids, other.ids, strict=True)) if a != b), None)
        if at is not None:
            parted.append(one.leads[at])
    ties = sum(lead <= tie for lead in parted) if tie is not None else 0
    return {"equal": len(right) - len(parted), "ties": ties, "others": len(parted) - ties, "parted": parted}
