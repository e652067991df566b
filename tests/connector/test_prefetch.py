from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from kvserving_connector.prefetch import unread

SHA = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same weights",
    "original/consolidated.00.pth": b"the same weights once more",
}
TOKEN = "hf_a-secret-token"


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download needs. One repository is gated, another is not there."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if "gated" in self.path:
            return self._answer(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask for access"})
        if "/api/models/owner/open" not in self.path and "/owner/open/" not in self.path:
            return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        if "unheard-of" in self.path:
            return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if "/tree/" in self.path:
            found = [{"type": "file", "path": name, "size": len(body), "oid": name} for name, body in FILES.items()]
            return self._answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})
        if self.path.startswith("/api/"):
            listed = {"id": "owner/open", "sha": SHA, "siblings": [{"rfilename": name} for name in FILES]}
            return self._answer(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})
        name = self.path.partition(f"/resolve/{SHA}/")[2]
        return self._answer(200, FILES[name], {"ETag": f'"{name}"', "X-Repo-Commit": SHA})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def prefetch(endpoint: str, home: Path, *named: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-m", "kvserving_connector.prefetch", *named],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def kept(home: Path) -> set[str]:
    return {path.name for path in (home / "hub" / "models--owner--open" / "snapshots" / SHA).rglob("*")}


def test_what_the_engine_loads_is_kept_and_nothing_twice(tmp_path: Path) -> None:
    with hub() as endpoint:
        done = prefetch(endpoint, tmp_path, "owner/open")
    assert (done.returncode, done.stdout) == (0, "owner/open is kept\n"), done.stderr
    assert kept(tmp_path) == {"config.json", "model.safetensors"}


def test_a_hub_that_does_not_answer_holds_nobody_up(tmp_path: Path) -> None:
    done = prefetch("http://127.0.0.1:1", tmp_path, "owner/open")
    assert done.returncode == 0
    assert "no answer from the hub" in done.stdout


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("owner/gated", "owner/gated is gated: accept its terms, and give the token in spec.model.secretRef"),
        ("owner/none", "the hub shows no such repository"),
        ("owner/open@unheard-of", "no such revision: correct spec.model.revision"),
    ],
)
def test_what_the_hub_refuses_is_said_without_the_token(tmp_path: Path, named: str, said: str) -> None:
    with hub() as endpoint:
        done = prefetch(endpoint, tmp_path, named)
    assert done.returncode == 1
    assert said in done.stderr
    assert TOKEN not in done.stderr + done.stdout


def test_weights_of_one_format_are_enough() -> None:
    assert "*.bin" in unread(["a.safetensors", "a.bin"])
    assert "*.bin" not in unread(["a.bin", "config.json"])
