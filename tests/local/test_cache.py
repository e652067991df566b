"""``kvserving cache``: what is read from engines, and how the store is asked."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvserving_operator.local import cache
from kvserving_operator.local.errors import LocalError
from kvserving_operator.local.state import PodState, State

METRICS = """
# HELP vllm:prefix_cache_queries_total tokens
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 25.0
vllm:external_prefix_cache_queries_total{engine="0"} 75.0
vllm:external_prefix_cache_hits_total{engine="0"} 0.0
vllm:kv_connector_mc_queries_total{connector="NixlConnector",engine="0"} 4.0
vllm:kv_connector_mc_hits_total{connector="NixlConnector",engine="0"} 3.0
"""


def pod(role: str, port: int = 0, pid: int | None = 1) -> PodState:
    return PodState(f"svc-{role}-0", role, "127.0.0.1", port, pid)


def state(*pods: PodState) -> State:
    return State(
        name="svc", revision="r", phase="Ready", router={"url": None}, engine_python=sys.executable,
        served_model="tiny", pods=pods, supervisor={"pid": 1, "start_time": 1},
    )  # fmt: skip


@contextmanager
def engine(text: str) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def test_hits_are_told_by_engine_and_tier() -> None:
    with engine(METRICS) as port:
        found = cache.hits(state(pod("prefill", port), pod("router", port)))
    assert [(hit.tier, hit.asked, hit.hit, hit.rate) for hit in found] == [
        ("own cache", 100, 25, "25.0 %"),
        ("tiers and transfer", 75, 0, "0.0 %"),
        ("NixlConnector", 4, 3, "75.0 %"),
    ]


def test_an_engine_that_does_not_answer_is_named() -> None:
    with engine("") as port:
        pass
    with pytest.raises(LocalError, match="svc-decode-0 does not answer"):
        cache.hits(state(pod("decode", port)))


@contextmanager
def running(config: dict[str, Any], **environment: str) -> Iterator[int]:
    """A process with an engine's arguments."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"--kv-transfer-config={json.dumps(config)}"],
        env={**environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def tiered(**tier: Any) -> dict[str, Any]:
    return {"kv_connector_extra_config": {"secondary_tiers": [{"type": "SharedStoreTier", **tier}]}}


def test_the_store_is_found_as_the_engines_have_it() -> None:
    config = {
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "NixlConnector"}, tiered(urls=["redis://a:1"])]}
    }
    with running(config, KVSERVING_STORE_PASSWORD="p", OTHER="x") as pid:
        found = cache.access(state(pod("prefill", pid=pid)))
    assert found is not None
    assert (found.urls, found.max_bytes, found.environment) == (
        ("redis://a:1",),
        None,
        {"KVSERVING_STORE_PASSWORD": "p"},
    )
    assert "PASSWORD" not in repr(found)


def test_a_service_without_a_store_has_none() -> None:
    with running({"kv_connector": "NixlConnector"}) as pid:
        assert cache.access(state(pod("decode", pid=pid))) is None


def test_why_the_store_does_not_answer_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho Traceback >&2\necho 'denied: wrong password' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(LocalError, match="the store cannot be asked: denied: wrong password"):
        cache.ask(cache.Access(("redis://a:1",), None, str(python), {}), "usage")
