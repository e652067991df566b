"""A prefill and a decode that stage whatever fits, and what they are asked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from e2e.local import tiers
from e2e.local.asking import Question, Reply, Texts, ask_all
from e2e.local.legs import through_pair
from e2e.local.stage import LEASE_SECONDS, Service, Stage, Topology

from kvserving_operator.local.run import Run

# A token of the tiny model is 4 KiB, a block 128 tokens: the longest prompt takes 8 MiB, so that few fit at once.
POOL = "10Mi"
QUESTIONS = tuple(Question(tokens, chat=False, stream=False) for tokens in (1, 15, 16, 17, 257, 1000, 2048))
SLOTS, RELEASED = "kvserving:staging_slots_total", "kvserving:staging_slots_released_total"
DIRECT, LOADS = "kvserving:staging_direct_total", "kvserving:staged_loads_total"
BACK_SECONDS = 240
IDLE_SECONDS = 3 * LEASE_SECONDS


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode that stage whatever fits."""

    service: Service
    stage: Stage

    @property
    def prefill(self) -> str:
        return self.service.engine_url("prefill")

    @property
    def decode(self) -> str:
        return self.service.engine_url("decode")

    def count(self, series: str, role: str = "prefill", **labels: str) -> int:
        return tiers.read(self.prefill if role == "prefill" else self.decode).of(series, **labels)

    def wait_idle(self) -> None:
        """Wait until every slot was given back."""
        taken = self.count(SLOTS)
        self.service.wait(lambda _: self.count(RELEASED) >= taken, IDLE_SECONDS, "every slot comes back")
        assert self.count(RELEASED) == self.count(SLOTS)

    def kill(self, role: str) -> None:
        os.kill(self.service.pods(role)[0]["pid"], signal.SIGKILL)

    def wait_back(self, role: str, restarts: int) -> None:
        def back(state: dict[str, Any]) -> bool:
            (pod,) = [pod for pod in state["pods"] if pod["role"] == role]
            return bool(pod["restarts"] > restarts and pod["ready"])

        self.service.wait(back, BACK_SECONDS, f"{role} is back")


@contextmanager
def paired(stage: Stage, model: Path) -> Iterator[Pair]:
    """The pair, up; nothing of it is left behind."""
    yield Pair(stage.show_changed(Topology("staged", model, staging=POOL), _stage_all), stage)
    stage.clear()


def alone(stage: Stage, single: Topology, texts: Texts) -> dict[Question, Reply]:
    """Return what one engine answers, alone."""
    return asyncio.run(ask_all(stage.show(single).url, texts, "staging", QUESTIONS))


async def through(
    prefill: str, decode: str, texts: Texts, salt: str, questions: tuple[Question, ...]
) -> dict[Question, Reply]:
    async with aiohttp.ClientSession() as session:
        return {
            question: await through_pair(session, prefill, decode, question.path, question.body(texts, salt))
            for question in questions
        }


def _stage_all(run: Run) -> Run:
    """Leave nothing to measured costs, which differ from machine to machine."""
    before = json.dumps(list(run.objects))
    after = before.replace('\\"staging_bytes\\":', '\\"staging_choice\\":\\"always\\",\\"staging_bytes\\":')
    assert after != before
    return replace(run, objects=tuple(json.loads(after)))
