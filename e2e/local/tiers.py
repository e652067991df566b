"""Services with tiers: small caches, prompts that are timed, and counters by tier."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from e2e.local.asking import REQUEST_SECONDS, Reply, Texts, ask
from e2e.local.legs import through_pair
from e2e.local.stage import Service, Topology
from prometheus_client.parser import text_string_to_metric_families

BLOCK = 128
"""Tokens of a block, and of a chunk of the tiers: what vLLM takes on a CPU."""
OWN_BLOCKS = 20
"""Blocks of the engine's own cache: 2,560 tokens, so that two prompts of a flood evict what came before."""
PROMPT = 1200
FLOOD = 1500
WHOLE = PROMPT // BLOCK * BLOCK
"""Tokens of the whole chunks of a prompt."""
CHUNKS = PROMPT // BLOCK
ANSWER = 16
STORED_SECONDS = 30.0
QUIET_SECONDS = 1.0


@dataclass(frozen=True)
class Tiered(Topology):
    """A service with ``spec.cache``; its engines' own cache has so many blocks (None: vLLM's choice).

    ``loras``: names and folders of adapters.
    """

    cache: Mapping[str, Any] = field(default_factory=dict)
    blocks: int | None = OWN_BLOCKS
    loras: tuple[tuple[str, Path], ...] = ()

    def text(self, name: str) -> str:
        """Return the object under ``name``."""
        made = json.loads(super().text(name))
        spec = made["spec"]
        spec["cache"] = self.cache
        if self.loras:
            spec["model"]["loras"] = [{"name": name, "uri": f"file://{folder}"} for name, folder in self.loras]
        args = [arg for arg in spec["engine"]["args"] if "max-model-len" not in arg] + ["--max-model-len=2048"]
        spec["engine"]["args"] = args + ([f"--num-gpu-blocks-override={self.blocks}"] if self.blocks else [])
        return json.dumps(made)


@dataclass(frozen=True, repr=False)
class Reading:
    """Counters of one engine."""

    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def of(self, name: str, **labels: str) -> int:
        """Return the sum of the samples of ``name`` that have the labels."""
        wanted = set(labels.items())
        return int(sum(value for (found, its), value in self.samples.items() if found == name and wanted <= its))

    def since(self, before: Reading) -> Reading:
        """Return what was counted after ``before``."""
        return Reading({key: value - before.samples.get(key, 0) for key, value in self.samples.items()})

    @property
    def loaded(self) -> dict[str, int]:
        """Tokens loaded from each tier."""
        return {tier: self.of("kvserving:tier_load_tokens_total", tier=tier) for tier in ("l1", "l2")}

    @property
    def external(self) -> int:
        """Tokens that came from outside the engine's own cache, as vLLM counts them."""
        return self.of("vllm:external_prefix_cache_hits_total")

    @property
    def own(self) -> int:
        """Tokens that the engine's own cache had."""
        return self.of("vllm:prefix_cache_hits_total")

    @property
    def stored(self) -> int:
        """Chunks that the engine put into the store, or found there when it was about to."""
        present = self.of("kvserving:store_skipped_chunks_total", reason="present")
        return self.of("kvserving:store_written_chunks_total") + present

    def __repr__(self) -> str:
        """Return the counters of tiers that are not 0, for the messages of tests."""
        told = []
        for (name, labels), value in sorted(self.samples.items(), key=lambda item: item[0][0]):
            counts = name.endswith("_total") and name.startswith(("kvserving:", "vllm:kv_offload"))
            if value and counts:
                its = ",".join(f"{key}={label}" for key, label in sorted(labels) if key not in ("engine", "model_name"))
                told.append(f"{name.removesuffix('_total')}{{{its}}} {value:g}")
        return "; ".join(told)

    def missed(self, reason: str) -> int:
        """Return the chunks that the store did not serve for ``reason``."""
        return self.of("kvserving:store_misses_total", reason=reason)


def read(url: str) -> Reading:
    """Read the counters of the engine at ``url``."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return Reading(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )


@dataclass(frozen=True)
class Answer:
    """Token ids of an answer, and the seconds until its first token came."""

    ids: tuple[int, ...]
    first: float


@dataclass(frozen=True)
class Asker:
    """Sends prompts to a service and reads the counters of the engines of one role.

    ``address``: an engine beside the service that is asked in its place.
    """

    service: Service
    texts: Texts
    role: str = "decode"
    address: str | None = None

    @property
    def engine(self) -> str:
        """Address of the engine whose tiers are looked at."""
        return self.address or self.service.engine_url(self.role)

    def ask(self, seed: int, tokens: int = PROMPT, answer: int = ANSWER, **more: Any) -> Answer:
        """Send the prompt of that seed and length through the router."""
        return self.send(self.texts.of(tokens, seed), answer, **more)

    def send(self, prompt: str, answer: int = ANSWER, **more: Any) -> Answer:
        """Send a prompt through the router, as a stream."""
        return self._stream(self.address or self.service.url, prompt, answer, **more)

    def send_to_engine(self, seed: int, **more: Any) -> Answer:
        """Send the prompt of that seed to the engine itself, as a stream: adapters have names that no router knows."""
        return self._stream(self.engine, self.texts.of(PROMPT, seed), ANSWER, **more)

    def _stream(self, url: str, prompt: str, answer: int, **more: Any) -> Answer:
        body = {
            "model": "tiny", "prompt": prompt, "max_tokens": answer, "temperature": 0, "stream": True,
            "return_token_ids": True, **more,
        }  # fmt: skip
        return asyncio.run(_timed(f"{url}/v1/completions", body))

    def detailed(self, seed: int, tokens: int = PROMPT, **more: Any) -> Reply:
        """Send the prompt and return the whole answer."""
        body = {
            "model": "tiny", "prompt": self.texts.of(tokens, seed), "max_tokens": ANSWER, "temperature": 0,
            "return_token_ids": True, **more,
        }  # fmt: skip

        async def main() -> Reply:
            async with aiohttp.ClientSession() as session:
                return await ask(session, self.address or self.service.url, "/v1/completions", body)

        return asyncio.run(main())

    def paired(self, prompt: list[int], **more: Any) -> tuple[int, ...]:
        """Send token ids to prefill and then to decode, as routers do that take token ids; return the answer's."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "return_token_ids": True}
        legs = self.service.engine_url("prefill"), self.service.engine_url("decode")

        async def main() -> Reply:
            async with aiohttp.ClientSession() as session:
                return await through_pair(session, *legs, "/v1/completions", {**body, **more})

        return asyncio.run(main()).ids[0]

    def tokens(self, seed: int, tokens: int) -> list[int]:
        """Return the token ids of a prompt, as the engine makes them."""
        body = json.dumps({"model": "tiny", "prompt": self.texts.of(tokens, seed)}).encode()
        request = urllib.request.Request(f"{self.engine}/tokenize", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: list[int] = json.load(answer)["tokens"]
        assert len(found) == tokens
        return found

    def answers(self, seed: int) -> None:
        """Ask until the router sends requests again, to an engine that came back."""
        deadline = time.monotonic() + STORED_SECONDS
        while True:
            try:
                self.ask(seed, FLOOD, 1)
                return
            except (AssertionError, aiohttp.ClientError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def flood(self, first: int, prompts: int = 2) -> None:
        """Send prompts that nobody sent before, to evict what came before them."""
        for seed in range(first, first + prompts):
            self.ask(seed, FLOOD, 1)

    def read(self) -> Reading:
        """Read the engine's counters."""
        return read(self.engine)

    @contextmanager
    def counting(self) -> Iterator[Callable[[], Reading]]:
        """Yield a function that returns what was counted since the beginning of the block."""
        before = self.read()
        yield lambda: self.read().since(before)

    @contextmanager
    def storing(self, chunks: int) -> Iterator[None]:
        """Wait, after the block, until the engine has put ``chunks`` more of them into the store, or found them there.

        Counters reach the API server with the engine's steps, so that requests too short for a chunk keep it going.
        """
        before = self.read()
        yield
        deadline = time.monotonic() + STORED_SECONDS
        while (counted := self.read().since(before)).stored < chunks:
            assert time.monotonic() < deadline, (
                f"less than {chunks} chunks are stored: {counted}\n{self.service.logs()}"
            )
            self.tick()

    @contextmanager
    def storing_all(self) -> Iterator[None]:
        """Wait, after the block, until the engine has stored something and then nothing more for ``QUIET_SECONDS``.

        Which chunks vLLM keeps of a model with several kinds of layers is its own choice.
        """
        before = self.read()
        yield
        started = changed = time.monotonic()
        stored = 0
        while not stored or time.monotonic() - changed < QUIET_SECONDS:
            assert time.monotonic() - started < STORED_SECONDS, f"{stored} chunks are stored\n{self.service.logs()}"
            self.tick()
            now = self.read().since(before).stored
            if now != stored:
                stored, changed = now, time.monotonic()

    def tick(self) -> None:
        """Make the engine run a step."""
        body = {"model": "tiny", "prompt": "a", "max_tokens": 1, "temperature": 0, "return_token_ids": True}

        async def main() -> None:
            async with aiohttp.ClientSession() as session:
                await ask(session, self.engine, "/v1/completions", body)

        asyncio.run(main())


def chunks(tokens: int) -> int:
    """Return the whole chunks of a prompt."""
    return tokens // BLOCK


async def _timed(url: str, body: dict[str, Any]) -> Answer:
    ids: list[int] = []
    first = 0.0
    started = time.monotonic()
    async with (
        asyncio.timeout(REQUEST_SECONDS),
        aiohttp.ClientSession() as session,
        session.post(url, json=body) as response,
    ):
        assert response.status == 200, await response.text()
        async for line in response.content:
            data = line.removeprefix(b"data: ").strip()
            if not line.startswith(b"data: ") or data == b"[DONE]":
                continue
            event = json.loads(data)
            assert "error" not in event, event["error"]
            for choice in event["choices"]:
                ids += choice.get("token_ids") or ()
            first = first or (time.monotonic() - started if ids else 0.0)
    return Answer(tuple(ids), first)
