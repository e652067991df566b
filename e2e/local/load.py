"""Clients that keep asking, and an account of what each request came to."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp

from .asking import Texts

REQUEST_SECONDS = 60.0
LEISURE_SECONDS = 2.0
"""Between two requests of the one client that goes on while the others are held back."""


@dataclass(frozen=True)
class Outcome:
    """One request: ``ok``, ``failed`` (before the first byte), ``cut`` (after it) or ``hung``. Times in seconds."""

    result: str
    started: float
    ended: float
    detail: str = ""


@dataclass
class Account:
    """What the clients met."""

    outcomes: list[Outcome] = field(default_factory=list)
    _added: asyncio.Event = field(default_factory=asyncio.Event)
    _all: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._all.set()

    def ease(self) -> None:
        """Let only the first client go on, at leisure: an engine that starts beside others needs two cores."""
        self._all.clear()

    def press(self) -> None:
        """Let all clients go on."""
        self._all.set()

    async def turn(self, number: int) -> None:
        """Wait until the client may ask again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if number else LEISURE_SECONDS):
                await self._all.wait()

    def count(self, since: float = 0.0) -> Counter[str]:
        """Count the results of the requests that started at ``since`` (monotonic) or later."""
        return Counter(outcome.result for outcome in self.outcomes if outcome.started >= since)

    def add(self, outcome: Outcome) -> None:
        """Take a request that ended."""
        self.outcomes.append(outcome)
        self._added.set()

    async def served(self, number: int, seconds: float, since: float = 0.0) -> None:
        """Wait until ``number`` requests that started at ``since`` or later were served; fail after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while self.count(since)["ok"] < number:
                    self._added.clear()
                    await self._added.wait()
        except TimeoutError:
            raise AssertionError(
                f"not within {seconds:g} s: {number} requests served; there were {dict(self.count(since))}"
            ) from None

    def losses(self, moment: float) -> str:
        """Return the requests that were not served, a line for each kind: the times are seconds after ``moment``."""
        kinds: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in self.outcomes:
            if outcome.result != "ok":
                kinds.setdefault((outcome.result, outcome.detail), []).append(outcome)
        return "\n".join(
            f"{len(found)} {result}, begun {min(o.started for o in found) - moment:.1f} s"
            f" to {max(o.started for o in found) - moment:.1f} s: {detail}"
            for (result, detail), found in kinds.items()
        )

    def slowest(self, moment: float) -> str:
        """Return what the three requests took that took longest, and when they began, in seconds after ``moment``."""
        found = sorted(self.outcomes, key=lambda o: o.started - o.ended)[:3]
        return ", ".join(f"{o.ended - o.started:.1f} s (begun at {o.started - moment:.1f} s)" for o in found)

    def recovered_after(self, moment: float) -> float:
        """Return the seconds from ``moment`` to the end of the last request that was not served."""
        return max((o.ended - moment for o in self.outcomes if o.result != "ok" and o.ended >= moment), default=0.0)


@asynccontextmanager
async def clients(url: str, texts: Texts, number: int) -> AsyncIterator[Account]:
    """Keep ``number`` streams open until the block ends; each then finishes its request."""
    account = Account()
    stop = asyncio.Event()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        running = [asyncio.create_task(_client(session, url, texts, account, stop, n)) for n in range(number)]
        try:
            yield account
        finally:
            stop.set()
            account.press()
            await asyncio.gather(*running)


async def _client(
    session: aiohttp.ClientSession, url: str, texts: Texts, account: Account, stop: asyncio.Event, number: int
) -> None:
    count = 0
    while not stop.is_set():
        await account.turn(number)
        count += 1
        body = {
            "model": "tiny",
            "prompt": texts.of(60, seed=number * 100_000 + count),
            "max_tokens": 24,
            "ignore_eos": True,
            "stream": True,
        }
        outcome = await _one(session, url, body)
        account.add(outcome)
        if outcome.result != "ok":
            # A client that is refused at once must not spin.
            await asyncio.sleep(0.25)


async def _one(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> Outcome:
    started = time.monotonic()
    first = False
    done = False
    detail = ""
    result = ""
    try:
        async with asyncio.timeout(REQUEST_SECONDS), session.post(url + "/v1/completions", json=body) as response:
            if response.status != 200:
                detail = f"{response.status} {(await response.text())[:200]}"
            else:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        event = json.loads(line.removeprefix(b"data: "))
                        if "error" in event:
                            detail = str(event["error"])[:200]
                            break
                        first = True
                        done = done or any(choice.get("finish_reason") for choice in event["choices"])
    except TimeoutError:
        result = "hung"
    except aiohttp.ClientError as error:
        detail = f"{type(error).__name__}: {error}"
    if not result:
        result = "ok" if done and not detail else "cut" if first else "failed"
    return Outcome(result, started, time.monotonic(), detail)
