"""Staged transfers between real engines: a crowd, a twin that spoils what it reads, and nothing left after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from e2e.local.asking import Question, Reply, Texts, ask, different
from e2e.local.legs import handoff
from e2e.local.stage import Stage, Topology
from e2e.local.staged import DIRECT, QUESTIONS, SLOTS, Pair, alone, paired, through
from e2e.local.twin import corrupting_twin_of

CROWD = 64


@pytest.fixture(scope="module")
def answers(stage: Stage, single: Topology, texts: Texts) -> dict[Question, Reply]:
    """What one engine answers, alone."""
    return alone(stage, single, texts)


@pytest.fixture(scope="module")
def pair(stage: Stage, qwen3: Path, answers: object) -> Iterator[Pair]:
    with paired(stage, qwen3) as found:
        yield found


def test_a_crowd_goes_through_a_pool_for_few(pair: Pair, answers: dict[Question, Reply], texts: Texts) -> None:
    questions = [QUESTIONS[3 + number % 3] for number in range(CROWD)]

    async def main() -> list[Reply]:
        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(
                *(
                    ask(session, pair.service.url, question.path, question.body(texts, f"crowd {number}"))
                    for number, question in enumerate(questions)
                )
            )

    before = pair.count(SLOTS)
    replies = asyncio.run(main())
    assert [reply.ids for reply in replies] == [answers[question].ids for question in questions]
    assert pair.count(SLOTS) - before > 0
    pair.wait_idle()
    full = pair.count(DIRECT, reason="full")
    pair.stage.numbers.append(f"{CROWD} at once: {pair.count(SLOTS) - before} staged; {full} so far met a full pool")


def test_a_corrupted_staged_transfer_fails_the_same_comparison(
    pair: Pair, answers: dict[Question, Reply], texts: Texts, tmp_path: Path
) -> None:
    questions = QUESTIONS[1:]
    before = pair.count(SLOTS)
    with corrupting_twin_of(pair.service.pods("decode")[0], tmp_path / "twin.log") as url:
        found = asyncio.run(through(pair.prefill, url, texts, "broken", questions))
    assert len(different({question: answers[question] for question in questions}, found)) == len(questions)
    assert pair.count(SLOTS) - before == len(questions)


def test_a_decode_that_is_killed_while_it_reads_leaves_no_slot(
    pair: Pair, answers: dict[Question, Reply], texts: Texts
) -> None:
    restarts = pair.service.pods("decode")[0]["restarts"]
    assert not asyncio.run(_killed(pair, "decode", answers, texts))
    pair.wait_idle()
    pair.wait_back("decode", restarts)
    assert not different(
        {QUESTIONS[4]: answers[QUESTIONS[4]]},
        asyncio.run(through(pair.prefill, pair.decode, texts, "decode is back", (QUESTIONS[4],))),
    )


def test_a_prefill_that_is_killed_while_it_is_read_gives_no_wrong_text(
    pair: Pair, answers: dict[Question, Reply], texts: Texts
) -> None:
    restarts = pair.service.pods("prefill")[0]["restarts"]
    assert not asyncio.run(_killed(pair, "prefill", answers, texts))
    pair.wait_back("prefill", restarts)
    before = pair.count(SLOTS)
    assert not different(
        {QUESTIONS[4]: answers[QUESTIONS[4]]},
        asyncio.run(through(pair.prefill, pair.decode, texts, "prefill is back", (QUESTIONS[4],))),
    )
    assert pair.count(SLOTS) - before == 1
    pair.wait_idle()


async def _killed(pair: Pair, role: str, answers: dict[Question, Reply], texts: Texts) -> list[str]:
    """Kill an engine while decode reads several staged prompts; return the answers that are wrong."""
    # One long and as many short ones as fit into the pool with it.
    questions = [QUESTIONS[5], *[QUESTIONS[4]] * 3]
    await asyncio.to_thread(pair.wait_idle)
    async with aiohttp.ClientSession() as session:
        bodies = [question.body(texts, f"killed {role} {number}") for number, question in enumerate(questions)]
        params = [await handoff(session, pair.prefill, "/v1/completions", body) for body in bodies]
        # The pool may hold a probe's prompt too.
        assert sum("remote_staged" in each for each in params) >= 2
        asked = [
            asyncio.ensure_future(ask(session, pair.decode, "/v1/completions", {**body, "kv_transfer_params": each}))
            for body, each in zip(bodies, params, strict=True)
        ]
        # The requests are on their way; how far each is when the engine dies differs.
        await asyncio.sleep(0.05)
        pair.kill(role)
        replies = await asyncio.gather(*asked, return_exceptions=True)
    return [
        f"{question}: {reply.ids}"
        for question, reply in zip(questions, replies, strict=True)
        if isinstance(reply, Reply) and reply.ids != answers[question].ids
    ]
