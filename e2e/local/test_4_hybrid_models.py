"""Models with several kinds of layers; the first also through the other router."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from e2e.local.asking import Question, Reply, Texts, ask, different
from e2e.local.legs import through_pair
from e2e.local.logprobs import LOGPROBS, TOLERANCE, difference
from e2e.local.stage import Service, Stage, Topology
from e2e.local.twin import corrupting_twin_of

QUESTIONS = tuple(Question(tokens, chat=False, stream=False) for tokens in (1, 16, 17, 129, 257, 2048))


def test_sliding_window_through_vllm_router_equals_a_single_engine(stage: Stage, models: Path) -> None:
    model = models / "tiny-gemma3"
    service = stage.show(Topology("gemma", model, router="vllm-router"))
    alone, moved = _both(service, Texts(model))
    assert not different(alone, moved)
    assert stage.kvserving("verify", service.name).returncode == 0


def test_recurrent_model_agrees_with_a_single_engine_in_logprobs(stage: Stage, models: Path) -> None:
    service, texts = _recurrent(stage, models)
    alone, moved = _both(service, texts, **LOGPROBS)
    worst = max(difference(alone[question], moved[question]) for question in QUESTIONS)
    stage.numbers.append(f"recurrent model: largest difference of a top logprob {worst:.4f}")
    assert worst <= TOLERANCE


def test_a_corrupted_state_is_beyond_the_tolerance(stage: Stage, models: Path, tmp_path: Path) -> None:
    service, texts = _recurrent(stage, models)
    questions = tuple(question for question in QUESTIONS if question.tokens > 1)
    with corrupting_twin_of(service.pods("decode")[0], tmp_path / "twin.log") as url:

        async def main() -> list[float]:
            async with aiohttp.ClientSession() as session:
                found = []
                for q in questions:
                    alone = await ask(session, url, q.path, q.body(texts, "alone", **LOGPROBS))
                    body = q.body(texts, "corrupted", **LOGPROBS)
                    moved = await through_pair(session, service.engine_url("prefill"), url, q.path, body)
                    found.append(difference(alone, moved))
                return found

        least = min(asyncio.run(main()))
    stage.numbers.append(f"recurrent model, corrupted: least difference of a top logprob {least:.4f}")
    assert least > TOLERANCE


def _recurrent(stage: Stage, models: Path) -> tuple[Service, Texts]:
    model = models / "tiny-qwen3-next"
    # vLLM's gated delta net on CPU computes in bfloat16 alone.
    return stage.show(Topology("next", model, args=("--dtype=bfloat16",))), Texts(model)


def _both(service: Service, texts: Texts, **more: object) -> tuple[dict[Question, Reply], dict[Question, Reply]]:
    """Ask decode alone, then prefill and decode through the router; salts keep both cold."""
    decode = service.engine_url("decode")

    async def main() -> tuple[dict[Question, Reply], dict[Question, Reply]]:
        async with aiohttp.ClientSession() as session:
            found: list[dict[Question, Reply]] = []
            for url, salt in ((decode, "alone"), (service.url, "moved")):
                found.append({q: await ask(session, url, q.path, q.body(texts, salt, **more)) for q in QUESTIONS})
            return found[0], found[1]

    return asyncio.run(main())
