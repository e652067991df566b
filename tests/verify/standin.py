"""Stand-ins for engines and a router: as much of their HTTP as verification uses, with switches for faults."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvserving_operator.verify.legs import Endpoint

KEY = b"0f" * 32
REVISION = "0123abcd"


@dataclass
class Engine:
    """A prefill or decode engine. ``faults`` name what is wrong with it."""

    pod: str
    role: Literal["prefill", "decode"]
    faults: frozenset[str] = frozenset()
    revision: str = REVISION
    key: bytes = KEY
    seen: list[dict[str, Any]] = field(default_factory=list)
    moved: int = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "max_model_len": 4096}]})

    async def metrics(self, _: web.Request) -> web.Response:
        text = (
            "# TYPE vllm:nixl_bytes_transferred histogram\n"
            f'vllm:nixl_bytes_transferred_bucket{{le="+Inf"}} {self.moved}\n'
            f"vllm:nixl_bytes_transferred_count {self.moved}\nvllm:nixl_bytes_transferred_sum {self.moved}\n"
        )
        if "no connector" not in self.faults:
            text += "# TYPE kvserving:receipts counter\nkvserving:receipts_total 0\n"
        return web.Response(text=text)

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(body)
        if "hung" in self.faults:
            await asyncio.Event().wait()
        if "broken" in self.faults or ("broken once" in self.faults and len(self.seen) == 1):
            return web.json_response({"error": {"message": f"cannot read {body['prompt']}"}}, status=500)
        tokens = len(body["prompt"].split())
        params = self.handoff(tokens) if self.role == "prefill" else self.receipt(body, tokens)
        return web.json_response(
            {
                "choices": [{"text": "x", "finish_reason": "length"}],
                "usage": {"prompt_tokens": tokens},
                "kv_transfer_params": params,
            }
        )

    def handoff(self, tokens: int) -> dict[str, Any] | None:
        if "no connector" in self.faults:
            return None
        params = {
            "do_remote_prefill": True,
            "remote_engine_id": f"engine-{self.pod}",
            "remote_block_ids": [list(range(tokens // 16))],
            "a key of a later version": {"b": 1, "a": [1.5, None]},
        }
        if "unsigned" in self.faults:
            return params
        text = json.dumps(params, sort_keys=True, separators=(",", ":"))
        mac = self.mac(f"kvserving-params\n{self.revision}\n1900000000\n{text}")
        signature = f"v1.{self.revision}.1900000000.{mac}"
        return {**params, "kvserving_signature": signature, "remote_prefill_cached_tokens": 0}

    def receipt(self, body: dict[str, Any], tokens: int) -> dict[str, Any] | None:
        _, expiry, nonce, mac = body["vllm_xargs"]["kvserving_probe"].split(".")
        if mac != self.mac(f"kvserving-probe\n{self.revision}\n{expiry}\n{nonce}") or "no connector" in self.faults:
            return None
        params = body.get("kv_transfer_params") or {}
        late = "late" in self.faults or ("late once" in self.faults and len(self.seen) == 1)
        got = 0 if late or "recomputes" in self.faults or not params else tokens - 1
        self.moved += got * 4096
        return {
            "kvserving_receipt": {
                "version": 1,
                "role": "decode",
                "revision": self.revision,
                "consumer": f"engine-{self.pod}",
                "producer": params.get("remote_engine_id"),
                "prompt_tokens": tokens,
                "external_tokens": got,
                "local_tokens": 0,
                "bytes": got * 4096,
                "descriptors": 4,
                "seconds": 0.001,
                "transport": "nixl/UCX",
                "refused": "expired" if late else None,
            }
        }

    def mac(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


@dataclass
class Router:
    """A router that sends each request to the first prefill and decode."""

    prefill: str | None
    decode: str
    passthrough: bool = False
    authorization: list[str | None] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        return app

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.authorization.append(request.headers.get("Authorization"))
        async with aiohttp.ClientSession() as session:
            if self.prefill is not None and not self.passthrough:
                leg = {**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
                async with session.post(f"{self.prefill}/v1/completions", json=leg) as response:
                    body["kv_transfer_params"] = (await response.json())["kv_transfer_params"]
            async with session.post(f"{self.decode}/v1/completions", json=body) as response:
                return web.json_response(await response.json(), status=response.status)


@asynccontextmanager
async def serving(
    engines: list[Engine], *, passthrough: bool = False
) -> AsyncIterator[tuple[tuple[Endpoint, ...], Endpoint, Router]]:
    """Serve the engines and a router; yield their endpoints and the router."""
    async with AsyncExitStack() as stack:
        endpoints = []
        for engine in engines:
            server = await stack.enter_async_context(TestServer(engine.app()))
            endpoints.append(Endpoint(engine.pod, engine.role, str(server.make_url("")).rstrip("/")))
        first = {role: next((e.url for e in endpoints if e.role == role), None) for role in ("prefill", "decode")}
        router = Router(first["prefill"], str(first["decode"]), passthrough)
        server = await stack.enter_async_context(TestServer(router.app()))
        yield tuple(endpoints), Endpoint("router-0", "router", str(server.make_url("")).rstrip("/")), router
