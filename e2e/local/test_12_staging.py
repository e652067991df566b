"""Staged transfers between real engines: the same tokens through a small pool, and no byte that decode has already.

Crowds, a twin that spoils what it reads, and kills are in ``test_16_staging_faults.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from e2e.local.asking import Question, Reply, Texts, ask, ask_all, different
from e2e.local.legs import through_pair
from e2e.local.stage import Stage, Topology
from e2e.local.staged import DIRECT, LOADS, QUESTIONS, SLOTS, Pair, alone, paired

ROUNDS = 3
BLOCK_BYTES = 128 * 4096
BYTES = "kvserving:staged_load_bytes_total"


@pytest.fixture(scope="module")
def answers(stage: Stage, single: Topology, texts: Texts) -> dict[Question, Reply]:
    """What one engine answers, alone."""
    return alone(stage, single, texts)


@pytest.fixture(scope="module")
def continued(stage: Stage, single: Topology, texts: Texts) -> Reply:
    """What one engine answers, alone and cold, to a prompt that begins like another."""

    async def main() -> Reply:
        async with aiohttp.ClientSession() as session:
            return await ask(session, stage.show(single).url, "/v1/completions", _continued(texts, "cold"))

    return asyncio.run(main())


@pytest.fixture(scope="module")
def pair(stage: Stage, qwen3: Path, answers: object, continued: object) -> Iterator[Pair]:
    with paired(stage, qwen3) as found:
        yield found


def test_token_ids_equal_a_single_engines_after_scattering_traffic(
    pair: Pair, answers: dict[Question, Reply], texts: Texts
) -> None:
    for number in range(ROUNDS):
        asyncio.run(_scatter(pair.service.url, texts, number))
        before = pair.count(SLOTS), pair.count(LOADS, "decode")
        found = asyncio.run(ask_all(pair.service.url, texts, f"staged {number}", QUESTIONS))
        assert not different(answers, found)
        assert pair.count(SLOTS) - before[0] == len(QUESTIONS)
        # The prompt of one token has nothing to load.
        assert pair.count(LOADS, "decode") - before[1] >= len(QUESTIONS) - 1
    pair.wait_idle()
    pair.stage.numbers.append(f"staged: {pair.count(SLOTS)} prompts in slots, {pair.count(DIRECT)} not")


def test_only_what_decode_lacks_is_read_from_a_slot(pair: Pair, continued: Reply, texts: Texts) -> None:
    beginning = {**_continued(texts, "twice"), "prompt": texts.of(1000)}

    async def main() -> Reply:
        async with aiohttp.ClientSession() as session:
            await through_pair(session, pair.prefill, pair.decode, "/v1/completions", beginning)
            before = pair.count(BYTES, "decode")
            reply = await through_pair(
                session, pair.prefill, pair.decode, "/v1/completions", _continued(texts, "twice")
            )
            read.append(pair.count(BYTES, "decode") - before)
            return reply

    read: list[int] = []
    assert asyncio.run(main()).ids == continued.ids
    # 1,500 tokens in twelve blocks of 128, of which decode had seven.
    assert read == [5 * BLOCK_BYTES]
    pair.wait_idle()


def _continued(texts: Texts, salt: str) -> dict[str, Any]:
    text = f"{texts.of(1000)} {texts.of(500, seed=1)}"
    return {**QUESTIONS[0].body(texts, f"continued {salt}"), "prompt": text}


async def _scatter(url: str, texts: Texts, seed: int) -> None:
    """Ask many prompts of many lengths, a few at a time, so that what is free lies in pieces."""
    gate = asyncio.Semaphore(6)
    async with aiohttp.ClientSession() as session:

        async def one(number: int) -> None:
            length = 20 + (number * 7919 + seed * 104729) % 500
            body = {
                "model": "tiny",
                "prompt": texts.of(length, seed=1000 * seed + number),
                "max_tokens": 1 + number % 9,
            }
            async with gate:
                await ask(session, url, "/v1/completions", {**body, "return_token_ids": True, "ignore_eos": True})

        await asyncio.gather(*(one(number) for number in range(24)))
