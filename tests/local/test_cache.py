"""``kvserving cache``: what is read from engines, and how the store is asked."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvserving_operator.cli import cache as cli
from kvserving_operator.local import cache, client, store_ping, stores
from kvserving_operator.local.errors import LocalError
from kvserving_operator.local.state import PodState, State
from kvserving_operator.plan import ports, storage

METRICS = """
# HELP vllm:prefix_cache_queries_total tokens
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 25.0
vllm:external_prefix_cache_queries_total{engine="0"} 75.0
vllm:external_prefix_cache_hits_total{engine="0"} 50.0
kvserving:tier_load_tokens_total{engine="0",tier="l1"} 20.0
kvserving:tier_load_tokens_total{engine="0",tier="l2"} 10.0
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


def test_hits_are_told_by_engine_and_tier_with_their_unit() -> None:
    with engine(METRICS) as port:
        found = cache.counted(state(pod("prefill", port), pod("router", port)))
    assert (found.l1, found.silent) == ((), ())
    assert [(hit.tier, hit.unit, hit.asked, hit.hit, hit.rate) for hit in found.hits] == [
        ("own cache", "tokens", 100, 25, "25.0 %"),
        ("from outside", "tokens", 75, 50, "66.7 %"),
        ("of it, L1", "tokens", None, 20, "-"),
        ("of it, L2", "tokens", None, 10, "-"),
        ("NixlConnector", "requests", 4, 3, "75.0 %"),
    ]


def test_an_engine_that_does_not_answer_is_named_and_the_others_are_told() -> None:
    with engine("") as closed:
        pass
    with engine(METRICS) as port:
        found = cache.counted(state(pod("decode", closed), pod("prefill", port)))
    assert {hit.engine for hit in found.hits} == {"svc-prefill-0"}
    (problem,) = found.silent
    assert "svc-decode-0 does not answer" in problem


OF_WORKERS = """
kvserving:worker_cache_capacity_bytes{engine="0",model_name="tiny"} 3221225472.0
kvserving:worker_cache_capacity_bytes{engine="1",model_name="tiny"} 1073741824.0
kvserving:worker_cache_used_bytes{engine="0",model_name="tiny"} 1073741824.0
kvserving:worker_cache_used_bytes{engine="1",model_name="tiny"} 0.0
"""


def test_what_l1_holds_is_told_by_engine_where_workers_own_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(METRICS + OF_WORKERS) as workers, engine(METRICS) as scheduler:
        here = state(pod("prefill", workers), pod("decode", scheduler))
        assert cache.counted(here).l1 == (cache.Held("svc-prefill-0", 2**30, 4 * 2**30),)
        monkeypatch.setattr(client, "running", lambda _name: here)
        monkeypatch.setattr(cache, "access", lambda _state: None)
        shown = CliRunner().invoke(cli.command, ["usage", "svc"], standalone_mode=False).output
        made = CliRunner().invoke(cli.command, ["usage", "svc", "-o", "json"], standalone_mode=False).output
    assert "L1 of svc-prefill-0: 1Gi of 4Gi\n" in shown
    assert "L1 of svc-decode-0" not in shown
    told = json.loads(made)
    assert told["l1"] == [{"engine": "svc-prefill-0", "used_bytes": 2**30, "capacity_bytes": 4 * 2**30}]
    assert (len(told["hits"]), told["silent"], told["store"]) == (10, [], None)


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


def test_an_engine_that_is_gone_hides_no_store_that_another_has() -> None:
    with running(tiered(urls=["redis://a:1"])) as pid:
        found = cache.access(state(pod("decode", pid=2**22 + 1), pod("prefill", pid=pid)))
        assert found is not None
    for pods in ((), (pod("prefill", pid=2**22 + 1),), (pod("prefill", pid=None),)):
        with pytest.raises(LocalError, match=r"cannot be looked at|no engine of the service runs"):
            cache.access(state(*pods))


def test_a_service_without_a_store_has_none() -> None:
    with running({"kv_connector": "NixlConnector"}) as pid:
        assert cache.access(state(pod("decode", pid=pid))) is None


def test_why_the_store_does_not_answer_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho Traceback >&2\necho 'denied: wrong password' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(LocalError, match="the store cannot be asked: denied: wrong password"):
        cache.ask(cache.Access(("redis://a:1",), None, str(python), {}), "usage")


def test_what_a_store_says_reaches_no_terminal_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"model": "m\x1b]0;owned\x07\x1b[2J\nFAKE LINE", "tenant": "\u202e\ud800t"}
    held = {"namespaces": [{"namespace": "ab" * 16, "objects": 1, "bytes": 1, "about": about}],
            "used_bytes": 1, "limit_bytes": None}  # fmt: skip
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '%s' {shlex.quote(json.dumps(held))}\n")
    python.chmod(0o755)
    reached = cache.Access(("redis://a:1",), None, str(python), {})
    monkeypatch.setattr(client, "running", lambda _name: state())
    monkeypatch.setattr(cache, "access", lambda _state: reached)
    done = CliRunner().invoke(cli.command, ["usage", "svc"], standalone_mode=False)
    shown = done.output.splitlines()[-1]
    assert "FAKE LINE" in shown
    assert shown.isprintable()
    asked = CliRunner().invoke(cli.command, ["purge", "svc", f"--namespace={'ab' * 16}"], input="n\n")
    assert "FAKE LINE" in asked.output
    assert "nothing is removed" in asked.output
    assert "\x1b" not in asked.output
    assert "\x1b" not in capsys.readouterr().out
    python.write_text("#!/bin/sh\nprintf 'protocol: \\033[2J' >&2\nexit 1\n")
    with pytest.raises(LocalError) as told:
        cache.ask(reached, "usage")
    assert str(told.value).isprintable()


def test_an_empty_store_is_told_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\nprintf '{"namespaces": [], "used_bytes": 0, "limit_bytes": 1073741824}'\n""")
    python.chmod(0o755)
    monkeypatch.setattr(client, "running", lambda _name: state())
    monkeypatch.setattr(cache, "access", lambda _state: cache.Access(("redis://a:1",), None, str(python), {}))
    done = CliRunner().invoke(cli.command, ["usage", "svc"], standalone_mode=False)
    assert "store: 0Mi of 1Gi\n" in done.output


PASSWORDS = [
    "plain",
    "a b",
    'q"u"o',
    "back\\slash\\",
    "\\",
    '"',
    "\\n\\x41",
    "$(id)`id`$HOME",
    "%s%d",
    "'&/#;",
    "pässwörd",
]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("password", PASSWORDS)
def test_the_store_is_configured_with_any_password(tmp_path: Path, password: str, end: str) -> None:
    (tmp_path / "valkey-server").symlink_to("/bin/cat")
    (tmp_path / "password").write_text(password + end, newline="")
    done = subprocess.run(
        ["sh", "-c", storage._START, "valkey"], env=beside(tmp_path), capture_output=True, text=True, check=True
    )
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    assert done.stdout == f'requirepass "{escaped}"\n'


@pytest.mark.parametrize("text", [None, "", "\n"], ids=["unreadable", "empty", "an empty line"])
def test_a_store_without_a_password_does_not_start(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "valkey-server").symlink_to("/bin/cat")
    if text is not None:
        (tmp_path / "password").write_text(text)
    done = subprocess.run(
        ["sh", "-c", storage._START, "valkey"], env=beside(tmp_path), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"no password in {tmp_path}/password" in done.stderr


def beside(folder: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join((str(folder), os.environ["PATH"]))
    return {"PATH": path, "KVSERVING_STORE_PASSWORD_FILE": str(folder / "password"), **more}


@pytest.mark.skipif(stores.server() is None, reason="no valkey-server")
@pytest.mark.parametrize("password", ['"\\q "x\\n\\', "pässwörd $HOME"])
def test_the_deployed_store_takes_the_password_that_engines_send(tmp_path: Path, password: str) -> None:
    stores.search_path(tmp_path / "bin")
    (tmp_path / "bin" / "password").write_text(f"{password}\r\n", newline="")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = ["sh", "-c", storage._START, "valkey", "--port", f"{port}", "--bind", "127.0.0.1", "--save", ""]
    process = subprocess.Popen(line, env=beside(tmp_path / "bin"), stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        answer, deadline = "", time.monotonic() + 10
        while not answer:
            try:
                answer = store_ping.ping("127.0.0.1", port, password)
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert answer == "PONG"
        assert "WRONGPASS" in store_ping.ping("127.0.0.1", port, f"{password}x")
        environment = beside(tmp_path / "bin", KVSERVING_BIND_ADDRESS="127.0.0.1")
        ask = storage._ASK.replace(f"-p {ports.STORE}", f"-p {port}")
        assert subprocess.run(["sh", "-c", ask], env=environment, check=False).returncode == 0
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
