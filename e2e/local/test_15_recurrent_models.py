"""A model with recurrent layers beside attention, whose answers agree within a tolerance."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from e2e.local.asking import Texts, ask
from e2e.local.hybrids import QUESTIONS, both
from e2e.local.legs import through_pair
from e2e.local.logprobs import LOGPROBS, TOLERANCE, difference
from e2e.local.stage import Service, Stage, Topology
from e2e.local.twin import corrupting_twin_of


def test_recurrent_model_agrees_with_a_single_engine_in_logprobs(stage: Stage, models: Path) -> None:
    service, texts = _recurrent(stage, models)
    alone, moved = both(service, texts, **LOGPROBS)
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
