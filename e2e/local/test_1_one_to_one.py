"""One prefill and one decode: answers, proof, sockets, and what shows that the comparison can fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from e2e.local.asking import QUESTIONS, Question, Reply, Texts, ask, ask_all, different
from e2e.local.legs import through_pair
from e2e.local.sockets import listening
from e2e.local.stage import Service, Stage
from e2e.local.twin import corrupting_twin_of


def test_token_ids_equal_a_single_engine(one_to_one: Service, expected: dict[Question, Reply], texts: Texts) -> None:
    found = asyncio.run(ask_all(one_to_one.url, texts, "1p1d"))
    assert not different(expected, found)
    assert all(len(reply.ids[0]) > 0 for reply in found.values())


def test_verify_proves_the_transfer(one_to_one: Service, stage: Stage) -> None:
    done = stage.kvserving("verify", one_to_one.name)
    assert done.returncode == 0, done.stdout
    assert "prompt tokens" in done.stdout
    stage.numbers += [f"one-to-one verify: {line.strip()}" for line in done.stdout.splitlines() if "B/s" in line]


def test_a_corrupted_transfer_fails_the_same_comparison(
    one_to_one: Service, expected: dict[Question, Reply], texts: Texts, tmp_path: Path
) -> None:
    questions = tuple(question for question in QUESTIONS if question.tokens >= 15 and not question.stream)
    sound = {question: expected[question] for question in questions}

    async def compare(decode: str, salt: str) -> list[str]:
        async with aiohttp.ClientSession() as session:
            found = {
                question: await through_pair(session, prefill, decode, question.path, question.body(texts, salt))
                for question in questions
            }
            return different(sound, found)

    prefill = one_to_one.engine_url("prefill")
    assert not asyncio.run(compare(one_to_one.engine_url("decode"), "sound"))
    with corrupting_twin_of(one_to_one.pods("decode")[0], tmp_path / "twin.log") as url:
        assert len(asyncio.run(compare(url, "broken"))) == len(questions)


def test_engines_share_no_port(one_to_one: Service) -> None:
    sockets = {pod["name"]: listening(pod["pid"]) for pod in one_to_one.state()["pods"]}
    engines = [one_to_one.pods(role)[0] for role in ("prefill", "decode")]
    for pod in engines:
        assert (pod["address"], pod["port"]) in sockets[pod["name"]]
        assert (pod["address"], 5600) in sockets[pod["name"]]
    assert len({pod["address"] for pod in engines}) == 2
    names = sorted(sockets)
    for first, second in ((a, b) for a in names for b in names if a < b):
        assert not sockets[first] & sockets[second], f"{first} and {second} share a port"


def test_twenty_streams_at_once_complete(one_to_one: Service, texts: Texts) -> None:
    async def main() -> list[Reply]:
        async with aiohttp.ClientSession() as session:
            body = {
                "model": "tiny", "max_tokens": 32, "stream": True, "return_token_ids": True, "ignore_eos": True,
            }  # fmt: skip
            return await asyncio.gather(
                *(
                    ask(session, one_to_one.url, "/v1/completions", {**body, "prompt": texts.of(100 + n, seed=n)})
                    for n in range(20)
                )
            )

    replies = asyncio.run(main())
    assert [len(reply.ids[0]) for reply in replies] == [32] * 20
    assert {reply.finish_reason for reply in replies} == {"length"}
