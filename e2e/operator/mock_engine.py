#!/usr/bin/env python3
"""A stand-in for vLLM in pods that run as processes: what a router and a drain see of an engine, at no cost.

It is run as the engine container's interpreter: as ``vllm`` it serves, anything else (the drain) runs as it is. Real
engines behind the same router: ``test_real_engines.py`` and the cluster lane.

A prefill leg is answered with parameters that name the revision; a decode leg whose parameters name another one is
written to the file that the environment variable ``MIXED`` names.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import runpy
import sys
import uuid
from pathlib import Path
from typing import Any

from aiohttp import web

MIXED = "MOCK_ENGINE_MIXED"
CHUNKS = 10
CHUNK_SECONDS = 0.3
PREFILL_SECONDS = 0.2
DONE = b"data: [DONE]\n\n"


class Engine:
    """One engine. ``running`` and ``finished`` count requests."""

    def __init__(self, revision: str, model: str, mixed: Path) -> None:
        self.revision = revision
        self.model = model
        self.mixed = mixed
        self.running = 0
        self.finished = 0

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Answer one leg, or both in one."""
        self.running += 1
        try:
            return await self._answer(request, await request.json())
        finally:
            self.running -= 1
            self.finished += 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        params = body.get("kv_transfer_params") or {}
        if params.get("do_remote_decode"):
            await asyncio.sleep(PREFILL_SECONDS)
            return web.json_response(self._completion(self._handoff()))
        if params.get("do_remote_prefill") and params.get("revision") != self.revision:
            with self.mixed.open("a") as file:
                file.write(f"{params.get('revision')} to {self.revision}\n")
        if not body.get("stream"):
            await asyncio.sleep(CHUNKS * CHUNK_SECONDS)
            return web.json_response(self._completion(None))
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for number in range(CHUNKS):
            await asyncio.sleep(CHUNK_SECONDS)
            choice = {"index": 0, "text": f"{number} ", "finish_reason": "length" if number + 1 == CHUNKS else None}
            chunk = {"id": "cmpl", "object": "text_completion", "created": 1, "model": self.model, "choices": [choice]}
            await answer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await answer.write(DONE)
        return answer

    def _handoff(self) -> dict[str, Any]:
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[1, 2]],
            "remote_engine_id": uuid.uuid4().hex,
            "remote_request_id": uuid.uuid4().hex,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "revision": self.revision,
        }

    def _completion(self, params: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": "cmpl",
            "object": "text_completion",
            "created": 1,
            "model": self.model,
            "choices": [{"index": 0, "text": "x", "finish_reason": "length"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
            "kv_transfer_params": params,
        }

    async def models(self, _: web.Request) -> web.Response:
        """The one model."""
        card = {"id": self.model, "object": "model", "created": 1, "owned_by": "vllm", "root": self.model}
        return web.json_response({"object": "list", "data": [{**card, "max_model_len": 4096}]})

    async def metrics(self, _: web.Request) -> web.Response:
        """What the drain looks at."""
        lines = [
            f'vllm:num_requests_running{{engine="0"}} {self.running}',
            'vllm:num_requests_waiting{engine="0"} 0',
            f'vllm:request_success_total{{engine="0"}} {self.finished}',
        ]
        return web.Response(text="\n".join(lines) + "\n")


async def _nothing(_: web.Request) -> web.Response:
    return web.Response()


async def _version(_: web.Request) -> web.Response:
    return web.json_response({"version": "0.32.0"})


def serve(arguments: list[str]) -> None:
    """Serve as the arguments of an engine say."""
    options = {name: value for name, _, value in (a.partition("=") for a in arguments)}
    options |= {name: value for name, value in itertools.pairwise(arguments) if name.startswith("--")}
    engine = Engine(os.environ["KVSERVING_REVISION"], options["--served-model-name"], Path(os.environ[MIXED]))
    app = web.Application()
    app.add_routes(
        [
            web.post("/v1/completions", engine.generate),
            web.get("/v1/models", engine.models),
            web.get("/metrics", engine.metrics),
            web.get("/health", _nothing),
            web.get("/version", _version),
        ]
    )
    # The router tries HTTP/2 first, of which aiohttp tells at length.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    host, port = os.environ["KVSERVING_BIND_ADDRESS"], int(options.get("--port") or 8000)
    # As vLLM, it lets requests finish before it ends.
    web.run_app(app, host=host, port=port, print=None, access_log=None, shutdown_timeout=60)


def main() -> None:
    """Take the command line of the interpreter whose place this has."""
    if sys.argv[1] != "-m":
        sys.exit(f"{sys.argv[1]}: only modules are run here")
    if sys.argv[2].startswith("vllm."):
        serve(sys.argv[3:])
    else:
        del sys.argv[:2]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
