"""A read that outlasts its lease: prefill may have given the blocks to another prompt, so decode must not use them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from e2e.local import tiers
from e2e.local.asking import Question, Reply, Texts, ask
from e2e.local.legs import handoff, through_pair
from e2e.local.stage import LEASE_SECONDS, Service, Stage, Topology

from kvserving_operator.local import procfs

QUESTION = Question(1000, chat=False, stream=False)
FAILED = "kvserving:transfer_failures_total"


@dataclass(frozen=True)
class OverTcp(Topology):
    """Over TCP the engine that is read from takes part: a read from one that stands still goes on until it goes on."""

    def text(self, name: str) -> str:
        """Return the object under ``name``."""
        found: dict[str, Any] = json.loads(super().text(name))
        found["spec"]["engine"]["env"] = [{"name": "UCX_TLS", "value": "tcp"}]
        found["spec"]["transfer"]["onFailure"] = "recompute"
        return json.dumps(found)


@pytest.fixture(scope="module")
def service(stage: Stage, qwen3: Path) -> Iterator[Service]:
    yield stage.show(OverTcp("leases", qwen3))
    stage.clear()


def test_kv_that_arrived_after_its_lease_is_not_used_and_the_answer_is_right(service: Service, texts: Texts) -> None:
    prefill, decode = service.engine_url("prefill"), service.engine_url("decode")

    async def main() -> tuple[Reply, Reply]:
        async with aiohttp.ClientSession() as session:
            right = await through_pair(session, prefill, decode, QUESTION.path, QUESTION.body(texts, "in time"))
            late = QUESTION.body(texts, "late")
            params = await handoff(session, prefill, QUESTION.path, late)
            stopped = procfs.session_processes(service.pods("prefill")[0]["pid"])
            procfs.send(stopped, signal.SIGSTOP)
            try:
                asked = asyncio.create_task(ask(session, decode, QUESTION.path, {**late, "kv_transfer_params": params}))
                done, _ = await asyncio.wait([asked], timeout=LEASE_SECONDS + 2)
                assert not done, "nothing was read from the engine that stood still"
            finally:
                procfs.send(stopped, signal.SIGCONT)
            return right, await asked

    before = tiers.read(decode).of(FAILED)
    right, late = asyncio.run(main())
    assert late.ids == right.ids
    assert "beyond what its lease was certain to last" in service.logs(400)
    assert tiers.read(decode).of(FAILED) == before + 1
