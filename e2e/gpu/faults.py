"""Engines killed while KV moves, and clients that go away: no wrong answer, and nothing is held in the end."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import aiohttp
from e2e.local.twin import corrupting_twin_of

from kvserving_operator.api.v1alpha1 import RoleName
from kvserving_operator.local import procfs

from .asked import ANSWER, Asked
from .engine import Answer
from .steps import FEW_TOKENS, VICTIMS, Found, Yardstick, long_prompts

BACK_SECONDS = 180.0
ABORTS = 32
_LOST = (aiohttp.ClientError, AssertionError, TimeoutError)
"""How a request ends whose engine is gone; ``ask`` raises AssertionError for a status."""


async def aborts(asked: Asked, yardstick: Yardstick) -> Found:
    """Let clients go away at any moment of their requests, others between them stay; all that stay are answered."""
    length = asked.shape.lengths[-2]
    prompt, right = asked.texts.of(length), yardstick.lengths[-2]
    started = time.monotonic()
    await asked.routed(prompt, "whole")
    whole = time.monotonic() - started
    moments = random.Random("aborts")
    outcomes: Counter[str] = Counter()
    stayed: list[Answer] = []

    async def one(number: int) -> None:
        request = asyncio.ensure_future(asked.routed(prompt, f"abort {number}", stream=number % 2 == 0))
        if number % 4 == 3:
            stayed.append(await request)
            outcomes["stayed"] += 1
            return
        # Requests wait for one another, so the last stages come late.
        await asyncio.wait([request], timeout=moments.uniform(0, 4 * whole))
        outcomes["answered before" if request.done() else "aborted"] += 1
        request.cancel()
        await asyncio.wait([request])

    for first in range(0, ABORTS, 8):
        await asyncio.gather(*(one(number) for number in range(first, first + 8)))
    compared = asked.compare([right] * len(stayed), stayed)
    rest = await asked.idle()
    problems = [f"{compared['others']} other answers"] if compared["others"] else []
    problems += [] if rest["idle"] else [f"still held: {rest}"]
    return {"outcomes": dict(outcomes), "compared": compared, "rest": rest, "problems": problems}


async def decode_killed(asked: Asked, yardstick: Yardstick) -> Found:
    """Kill decode while it pulls."""
    return await _killed(asked, yardstick, "decode")


async def prefill_killed(asked: Asked, yardstick: Yardstick) -> Found:
    """Kill prefill while decode pulls from it."""
    return await _killed(asked, yardstick, "prefill")


async def _killed(asked: Asked, yardstick: Yardstick, role: RoleName) -> Found:
    """Kill every process of an engine at once, as when its container runs out of memory."""
    alone = (await asked.transfer(asked.shape.long_prompt, f"before {role} is killed"))["decode"]
    prompts, right = long_prompts(asked), yardstick.long
    salts = [f"killed {role} {number}" for number in range(VICTIMS)]
    params = await asyncio.gather(*(asked.handed(*of) for of in zip(prompts, salts, strict=True)))
    pod = asked.service.pods(role)[0]
    legs = [
        asyncio.ensure_future(asked.fetched(*of, tokens=FEW_TOKENS)) for of in zip(prompts, salts, params, strict=True)
    ]
    await asyncio.wait(legs, timeout=alone / 2)
    ended_before = sum(leg.done() for leg in legs)
    killed = time.monotonic()
    procfs.send(procfs.session_processes(pod["pid"]), signal.SIGKILL)
    replies = await asyncio.gather(*map(_answer_or_loss, legs))
    ended = time.monotonic() - killed
    answers = [(one, reply) for one, reply in zip(right, replies, strict=True) if isinstance(reply, Answer)]
    compared = asked.compare([one for one, _ in answers], [reply for _, reply in answers])

    def back(state: dict[str, Any]) -> bool:
        now = next(each for each in state["pods"] if each["name"] == pod["name"])
        return bool(now["ready"]) and now["pid"] != pod["pid"]

    took = await asyncio.to_thread(asked.service.wait, back, BACK_SECONDS, f"{pod['name']} is back")
    served = await asked.served()
    found = [await asked.routed(asked.texts.of(tokens), f"after {role} {tokens}") for tokens in asked.shape.lengths]
    after = asked.compare(yardstick.lengths, found)
    rest = await asked.idle()
    problems = [] if ended_before < VICTIMS else ["no transfer was under way when the engine was killed"]
    problems += [f"{one['others']} other answers" for one in (compared, after) if one["others"]]
    problems += [] if rest["idle"] else [f"still held: {rest}"]
    lost = Counter(type(reply).__name__ for reply in replies if not isinstance(reply, Answer))
    return {
        "under_way": VICTIMS - ended_before, "lost": dict(lost), "compared": compared, "after": after,
        "last_request_ended": round(ended, 2), "back_after": round(took, 1), "served_after": served,
        "rest": rest, "problems": problems,
    }  # fmt: skip


async def _answer_or_loss(leg: Awaitable[Answer]) -> Answer | Exception:
    try:
        return await leg
    except _LOST as loss:
        return loss


async def broken_twin(asked: Asked, yardstick: Yardstick) -> Found:
    """Ask a decode engine that zeroes the first block of what it receives: the comparison must fail."""
    log = asked.service.directory.logs / "twin.log"
    tokens = [length for length in asked.shape.lengths if length >= 257]
    right = [one for length, one in zip(asked.shape.lengths, yardstick.lengths, strict=True) if length in tokens]
    with await asyncio.to_thread(_Twin, asked.service.pods("decode")[0], log) as twin:
        found = []
        for length in tokens:
            prompt = asked.texts.of(length)
            params = await asked.handed(prompt, f"twin {length}")
            found.append(await twin.ask(asked, prompt, f"twin {length}", params))
    compared = asked.compare(right, found)
    problems = [] if compared["others"] else ["no answer differs: the comparison proves nothing"]
    return {"compared": compared, "problems": problems}


class _Twin:
    """A corrupting twin that is up when this is made, so that its start can be waited for in another thread."""

    def __init__(self, pod: dict[str, Any], log: Path) -> None:
        self._context = corrupting_twin_of(pod, log)
        self._url = self._context.__enter__()

    def __enter__(self) -> _Twin:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.__exit__(None, None, None)

    async def ask(self, asked: Asked, prompt: str, salt: str, params: dict[str, Any]) -> Answer:
        """Return the twin's answer on top of what prefill keeps."""
        return await asked.fetched(prompt, salt, params, ANSWER, url=self._url)
