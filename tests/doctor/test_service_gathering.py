"""What doctor asks of a service that runs on this machine, by real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.doctor.test_service_checks import METRICS

from kvserving_operator import cli
from kvserving_operator.doctor import gather_service
from kvserving_operator.local import launchers, procfs
from kvserving_operator.local.state import PodState, ServiceDir, State


class _Answers(BaseHTTPRequestHandler):
    version = '{"version": "0.32.0"}'
    metrics = METRICS
    kind = "text/plain"

    def do_GET(self) -> None:
        found = {"/metrics": self.metrics, "/version": self.version}.get(self.path)
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", self.kind)
        self.end_headers()
        self.wfile.write((found or "").encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(30)


def test_the_command_takes_the_name_of_a_service_that_runs_here(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    pods = (
        PodState("svc-prefill-0", "prefill", "127.0.0.1", 1, ready=True, phase="Ready"),
        PodState("svc-decode-0", "decode", "127.0.0.1", port, ready=True, phase="Ready"),
    )
    me = {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())}
    verification = {"ok": True, "at": 0.0, "lines": ["ok", "verified: KV moved"]}
    state = State(
        "svc", "0123abcd", "Ready", {"url": "http://127.0.0.1:1"}, sys.executable, "tiny", pods, me, verification,
        updated=4e9,
    )  # fmt: skip
    directory = ServiceDir("svc")
    directory.create()
    directory.write(state)
    assert cli.run(["doctor", "svc", "-o", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["service"]["name"] == "svc"
    found = {finding["check"]: finding for finding in said["findings"]}
    assert set(found) == {"decode-recomputes", "not-looked-at"}
    assert found["not-looked-at"]["where"] == "svc-prefill-0"
    assert cli.run(["doctor", "svc"]) == 1
    assert "verified: KV moved" in capsys.readouterr().out
    # A name with a namespace is that of an object, whatever runs here.
    assert cli.run(["doctor", "svc", "-n", "prod"]) == 3
    assert "there is no cluster to ask" in capsys.readouterr().err
    # One that does not run here may be in a cluster; where there is none, both are told.
    assert cli.run(["doctor", "other"]) == cli.run(["status", "other"]) == 1
    assert (
        "error: no service other runs on this machine (there are: svc; `kvserving up FILE` brings one up), and there "
        "is no cluster to ask: neither --kubeconfig nor KUBECONFIG is set, and ~/.kube/config does not exist. Name a "
        "kubeconfig, or a file of an object"
    ) in capsys.readouterr().err
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert cli.run(["doctor", "other"]) == 3, "a cluster that is named and cannot be asked may have it"


@pytest.mark.parametrize("answer", ["[]", "3", '{"version": 3}'])
def test_what_answers_otherwise_than_it_should_is_told_and_is_no_failure(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(_Answers, "version", answer)
    pods = (
        PodState("svc-prefill-0", "prefill", "127.0.0.1", 1, phase="Starting"),
        PodState("svc-decode-0", "decode", "127.0.0.1", port, ready=True, phase="Ready"),
    )
    me = {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())}
    gone = str(tmp_path / "gone" / "python")
    directory = ServiceDir("svc")
    directory.create()
    directory.write(State("svc", "r", "Ready", {"url": None}, gone, "tiny", pods, me, updated=4e9))
    assert cli.run(["doctor", "svc", "-o", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["service"]["engine"]["version"] is None
    found = {finding["check"]: finding for finding in said["findings"]}
    assert "decode-recomputes" in found, "the counters are read all the same"
    assert found["not-looked-at"]["where"] == "the engines' Python"
    assert f"{gone} does not run as Python" in found["not-looked-at"]["what"]


@pytest.mark.parametrize(
    ("spoilt", "text", "asked", "came"),
    [
        ("version", "<html>s3cr3t</html>", "GET /version", "200 of text/html, which is no JSON"),
        ("version", "[" * 100_000, "GET /version", "200 of text/html, which is no JSON"),
        ("metrics", "<html>s3cr3t", "GET /metrics", "200 of text/html, which is no Prometheus text"),
        ("metrics", "", "GET /metrics", "404 of text/html, which is no Prometheus text"),
    ],
)  # fmt: skip
def test_an_answer_of_another_kind_is_told_by_what_was_asked_and_what_came(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str, text: str, asked: str, came: str
) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(_Answers, spoilt, text)
    monkeypatch.setattr(_Answers, "kind", "text/html")
    pods = (PodState("svc-decode-0", "decode", "127.0.0.1", port, ready=True, phase="Ready"),)
    state = State("svc", "r", "Ready", {"url": None}, sys.executable, "tiny", pods, {}, updated=4e9)
    (unread,) = asyncio.run(gather_service.of_service(state)).unread
    assert unread.reason == f"the counters cannot be read: {asked} of port {port} gave an answer {came}"


def test_what_does_not_answer_in_time_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(gather_service, "_SECONDS", 1.0)
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        at = silent.getsockname()[1]
        pods = tuple(
            PodState(f"svc-{role}-0", role, "127.0.0.1", at, ready=True, phase="Ready")
            for role in ("prefill", "decode")
        )
        state = State("svc", "r", "Degraded", {"url": None}, str(slow), "tiny", pods, {}, updated=4e9)
        facts = asyncio.run(gather_service.of_service(state))
    assert {unread.what: unread.reason.rpartition(": ")[2] for unread in facts.unread} == dict.fromkeys(
        ("svc-prefill-0", "svc-decode-0", "the engines' Python"), "no answer within 1 s"
    )


def test_engines_and_their_python_are_asked_at_once(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(gather_service, "_SECONDS", 60.0)
    together = threading.Barrier(3)
    inspected = launchers.inspect

    def inspect(path: str, seconds: float) -> launchers.Interpreter:
        together.wait(50)
        return inspected(path, seconds)

    def answer(self: _Answers) -> None:
        if self.path == "/metrics":
            together.wait(50)
        _get(self)

    _get = _Answers.do_GET
    monkeypatch.setattr(gather_service, "inspect", inspect)
    monkeypatch.setattr(_Answers, "do_GET", answer)
    pods = tuple(
        PodState(f"svc-{role}-0", role, "127.0.0.1", port, ready=True, phase="Ready") for role in ("prefill", "decode")
    )
    state = State("svc", "r", "Ready", {"url": None}, sys.executable, "tiny", pods, {}, updated=4e9)
    facts = asyncio.run(gather_service.of_service(state))
    assert (set(facts.engines), facts.unread) == ({"svc-prefill-0", "svc-decode-0"}, ())
