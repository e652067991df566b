"""Helpers of the connector's tests: keys, good parameters, a recording ASGI application and a client for it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from kvserving_connector.core.policy import Role
from kvserving_connector.core.signing import Keys, sign_params
from kvserving_connector.guard import Guard
from kvserving_connector.metrics import GuardCounters
from kvserving_connector.settings import Settings
from kvserving_operator.verify.mark import probe_mark

PATIENCE_S = 20.0
KEY = "0123456789abcdef" * 4
OTHER_KEY = "fedcba9876543210" * 4
KEYS = Keys.parse(KEY)
REVISION = "rev-1"
NOW = 1_800_000_000.0
PROBE_PARAMS: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def handoff(**changes: Any) -> dict[str, Any]:
    """Parameters as a prefill engine returns them, before they are signed."""
    params: dict[str, Any] = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2, 3]],
        "remote_engine_id": "engine-p",
        "remote_request_id": "cmpl-1",
        "remote_host": "10.1.2.3",
        "remote_port": 5600,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 40,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }
    params.update(changes)
    return {key: value for key, value in params.items() if value is not ...}


def signed(**changes: Any) -> dict[str, Any]:
    return sign_params(handoff(**changes), keys=KEYS, revision=REVISION, expiry=int(NOW) + 30)


def mark(now: float = NOW) -> dict[str, Any]:
    """Extra arguments with the operator's mark of a probe, which ends 60 s after ``now``."""
    return {"kvserving_probe": probe_mark(KEY.encode(), REVISION, int(now) + 60, "0" * 16)}


@dataclass
class Engine:
    """An ASGI application that records the bodies it gets and answers 200."""

    bodies: list[bytes] = field(default_factory=list)
    scopes: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(dict(scope))
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    @property
    def seen(self) -> Any:
        """The last body as the engine's parser reads it."""
        return json.loads(self.bodies[-1])


class Rig:
    """A guard in front of an application, with counters of its own."""

    def __init__(self, tmp_path: Path, role: Role | None, app: Any = None, key: str | None = KEY) -> None:
        key_file = tmp_path / "signing"
        if key is not None:
            key_file.write_text(key + "\n")
        registry = CollectorRegistry()
        self.counters = GuardCounters(
            Counter("kvserving:guard_refused_total", "r", ["reason"], registry=registry),
            Counter("kvserving:guard_accepted_total", "a", registry=registry),
            Gauge("kvserving:guard_unanswered_requests", "u", registry=registry),
        )
        self.registry = registry
        self.engine = app if app is not None else Engine()
        settings = Settings(role, REVISION, 30, str(key_file), "")
        self.guard = Guard(self.engine, settings=settings, counters=self.counters, clock=lambda: NOW)

    def refused(self, reason: str) -> float:
        return self.registry.get_sample_value("kvserving:guard_refused_total", {"reason": reason}) or 0.0

    @property
    def unanswered(self) -> float | None:
        return self.registry.get_sample_value("kvserving:guard_unanswered_requests")

    @property
    def accepted(self) -> float:
        return self.registry.get_sample_value("kvserving:guard_accepted_total") or 0.0

    def post(
        self,
        body: Any,
        *,
        path: str = "/v1/completions",
        content_type: str | None = "application/json",
        method: str = "POST",
        chunks: int = 1,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> tuple[int, bytes]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return asyncio.run(self._post(raw, path, content_type, method, chunks, headers))

    async def _post(
        self, raw: bytes, path: str, content_type: str | None, method: str, chunks: int, extra: Any
    ) -> tuple[int, bytes]:
        size = max(1, -(-len(raw) // chunks))
        parts = [raw[at : at + size] for at in range(0, len(raw), size)] or [b""]
        messages = [
            {"type": "http.request", "body": part, "more_body": index < len(parts) - 1}
            for index, part in enumerate(parts)
        ]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-length", str(len(raw)).encode())] if chunks == 1 else [(b"transfer-encoding", b"chunked")]
        if content_type is not None:
            headers.append((b"content-type", content_type.encode()))
        scope = {"type": "http", "method": method, "path": path, "headers": [*headers, *extra]}
        await self.guard(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def step_until(holds: Callable[[], Any], step: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Step until it holds; fail where it does not within ``seconds``."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it does not come to pass"
        step()


def blocks(count: int) -> Any:
    """As many of vLLM's blocks of one cache group, numbered from 1."""
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

    return KVCacheBlocks((tuple(KVCacheBlock(block_id=index + 1) for index in range(count)),))


def finish(one: Any, status: str = "FINISHED_LENGTH_CAPPED") -> None:
    """Let a request of vLLM's have computed its prompt and ended."""
    from vllm.v1.request import RequestStatus

    one.status = RequestStatus[status]
    one.num_computed_tokens = one.num_prompt_tokens
