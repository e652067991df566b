"""The steps of the lane against engines that compute nothing and answer by the prompt alone."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from e2e.gpu import faults, steps
from e2e.gpu.asked import Asked
from e2e.gpu.shapes import TINY
from e2e.gpu.steps import Yardstick
from e2e.local.asking import Texts

SHAPE = replace(TINY, lengths=(15, 16, 300), timed=(64,), scatter=(4, 20, 40), crowd=5, staging=2**20, long_prompt=50)
WORDS = {word: number for number, word in enumerate(("the", "of", "any", "and", "work", "to", "this", "or", "in"))}


class Engine:
    """One engine. ``spoils``: what comes from prefill gives another answer. ``keeps``: KV stays in use."""

    def __init__(self, *, spoils: bool = False, keeps: bool = False) -> None:
        self.spoils = spoils
        self.keeps = keeps
        self.counts: Counter[str] = Counter()
        self.busy = 0
        self.dead = False

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        params = body.get("kv_transfer_params")
        fetches = bool(params) and not params.get("do_remote_decode")
        if fetches:
            self.busy += 1
            try:
                await asyncio.sleep(0.05)
            finally:
                self.busy -= 1
            self.counts["kvserving:transfers_total"] += 1
            self.counts["kvserving:transfer_tokens_total"] += 1
            if self.dead:
                assert request.transport is not None
                request.transport.close()
        text = json.dumps(body["prompt"])
        ids = [self._token(text, at, spoiled=fetches and self.spoils) for at in range(body["max_tokens"])]
        choice: dict[str, Any] = {"index": 0, "token_ids": ids, "finish_reason": "length"}
        if body.get("logprobs"):
            choice["logprobs"] = {"top_logprobs": [{"token_id:1": -0.5, "token_id:2": -1.5} for _ in ids]}
        answer: dict[str, Any] = {"choices": [choice], "usage": {"prompt_tokens": 1}}
        if params and params.get("do_remote_decode"):
            answer["kv_transfer_params"] = {"do_remote_prefill": True}
        if not body.get("stream"):
            return web.json_response(answer)
        return web.Response(text=f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n")

    async def metrics(self, request: web.Request) -> web.Response:
        gauges = {"vllm:kv_cache_usage_perc": 0.5 if self.keeps else 0.0, "vllm:num_requests_running": self.busy}
        lines = [f"# TYPE {name} gauge\n{name} {value}" for name, value in gauges.items()]
        lines += [f"# TYPE {name.removesuffix('_total')} counter\n{name} {n}" for name, n in self.counts.items()]
        return web.Response(text="\n".join(lines) + "\n")

    @staticmethod
    def _token(text: str, at: int, *, spoiled: bool) -> int:
        return hashlib.sha256(f"{text} {at} {spoiled}".encode()).digest()[0]


class Service:
    """Stands in for a service that is up: engines of one loop, and a router that sends both legs."""

    def __init__(self, engines: dict[str, Engine], folder: Path) -> None:
        self.engines = engines
        self.urls: dict[str, str] = {}
        self.waited: list[str] = []
        self.refusals = 0

    @property
    def url(self) -> str:
        return self.urls["router"]

    def engine_url(self, role: str) -> str:
        return self.urls[role]

    def pods(self, role: str) -> list[dict[str, Any]]:
        return [{"name": f"{role}-0", "pid": 2**22 + 1}]

    def wait(self, holds: Callable[[dict[str, Any]], bool], seconds: float, what: str) -> float:
        self.waited.append(what)
        for engine in self.engines.values():
            engine.dead = False
        self.refusals = 2
        return 1.0

    async def route(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.refusals:
            self.refusals -= 1
            return web.json_response({"error": "no decode workers"}, status=503)
        async with aiohttp.ClientSession() as session:
            if "prefill" in self.urls:
                leg = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
                async with session.post(self.urls["prefill"] + request.path, json=leg) as answer:
                    body["kv_transfer_params"] = (await answer.json())["kv_transfer_params"]
            async with session.post(self.urls["decode"] + request.path, json=body) as answer:
                return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)


@asynccontextmanager
async def asking(tmp_path: Path, name: str = "plain", **engines: Engine) -> AsyncIterator[Asked]:
    """Yield who asks a service of these engines."""
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": WORDS | {f"\u0120{word}": number for word, number in WORDS.items()}}})
    )
    service = Service(engines, tmp_path)
    runners = []
    routes: dict[str, Any] = {role: engine.complete for role, engine in engines.items()} | {"router": service.route}
    for role, handler in routes.items():
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", handler)
        if role in engines:
            app.router.add_get("/metrics", engines[role].metrics)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        service.urls[role] = f"http://127.0.0.1:{runner.addresses[0][1]}"
        runners.append(runner)
    try:
        async with aiohttp.ClientSession() as session:
            stands_in: Any = service
            yield Asked(stands_in, SHAPE, Texts(tmp_path), session, name)
    finally:
        for runner in runners:
            await runner.cleanup()


def looked(
    tmp_path: Path, step: Callable[[Asked, Yardstick], Any], *, name: str = "plain", **decode: bool
) -> dict[str, Any]:
    """Make the yardstick with one engine, then run a step on a pair."""

    async def main() -> dict[str, Any]:
        yardstick = Yardstick()
        async with asking(tmp_path, "single", decode=Engine()) as single:
            assert not (await steps.reference(single, yardstick))["problems"]
            assert (await steps.sensitivity(single, yardstick))["problems"] == []
        async with asking(tmp_path, name, prefill=Engine(), decode=Engine(**decode)) as asked:
            found: dict[str, Any] = await step(asked, yardstick)
            json.dumps(found)
            return found

    return asyncio.run(main())


SOUND = [steps.fresh, steps.scattered, steps.token_ids, steps.crowd, faults.aborts]


@pytest.mark.parametrize("step", SOUND, ids=lambda step: step.__name__)
def test_a_sound_pair_has_no_problem(tmp_path: Path, step: Callable[..., Any]) -> None:
    assert looked(tmp_path, step)["problems"] == []


@pytest.mark.parametrize("step", [steps.token_ids, steps.crowd, faults.aborts], ids=lambda step: step.__name__)
def test_wrong_kv_is_a_problem(tmp_path: Path, step: Callable[..., Any]) -> None:
    problems = looked(tmp_path, step, spoils=True)["problems"]
    assert problems
    assert "other answers" in problems[0]


def test_kv_that_stays_in_use_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.gpu.asked.IDLE_SECONDS", 0.0)
    found = looked(tmp_path, steps.crowd, keeps=True)
    assert [problem for problem in found["problems"] if problem.startswith("still held")]


def test_every_round_of_ids_is_compared_and_every_transfer_counted(tmp_path: Path) -> None:
    found = looked(tmp_path, steps.token_ids)
    assert [one["equal"] for one in found["rounds"]] == [3, 3, 3]
    assert found["counted"]["transfers"] == 9


def test_transfers_are_timed_four_times_and_slow_ones_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(looked(tmp_path, steps.fresh)["transfers"]["64"]) == 4
    monkeypatch.setattr(steps, "SLOW_BYTES", 0)
    assert len(looked(tmp_path, steps.fresh, name="kvcached")["transfers"]["64"]) == 1
    assert len(looked(tmp_path, steps.fresh, name="kvcached-staged-large")["transfers"]["64"]) == 4


@pytest.mark.parametrize("stages", [True, False])
def test_transfers_that_are_not_staged_are_a_problem_only_where_the_model_can_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: bool
) -> None:
    monkeypatch.setitem(globals(), "SHAPE", replace(SHAPE, device="gpu", stages=stages))
    found = looked(tmp_path, steps.scattered, name="staged")
    assert found["problems"] == (["no transfer was staged"] if stages else [])


def test_an_engine_killed_while_it_pulls_loses_requests_and_answers_none_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def kill(asked: Asked, yardstick: Yardstick) -> dict[str, Any]:
        service: Any = asked.service
        monkeypatch.setattr(
            "kvserving_operator.local.procfs.send", lambda *_: setattr(service.engines["decode"], "dead", True)
        )
        found: dict[str, Any] = await faults.decode_killed(asked, yardstick)
        assert service.waited == ["decode-0 is back"]
        return found

    found = looked(tmp_path, kill)
    assert found["problems"] == []
    assert found["under_way"] == steps.VICTIMS
    assert sum(found["lost"].values()) + sum(found["compared"][kind] for kind in ("equal", "ties")) == steps.VICTIMS
    assert found["after"]["equal"] == 3
    assert found["served_after"] >= 1.0
