"""The launcher starts the pinned routers without a key in any argument."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.plan.support import LOCAL, pair, render

from kvserving_operator.plan import router

ADMIN, CLIENT = "5ec2e7ad314159", "c11e47c0de271828"
ADDRESS = "127.91.7.1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "launch.py").write_text(router.LAUNCHER, encoding="utf-8")
    (tmp_path / "admin").write_text(ADMIN + "\n")
    (tmp_path / "api").write_text(CLIENT + "\n")
    (tmp_path / "engines.json").write_text('{"version": 1, "workers": []}')
    return tmp_path


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "KVSERVING_ROUTER_ADMIN_KEY_FILE": str(folder / "admin"),
        "KVSERVING_ROUTER_API_KEY_FILE": str(folder / "api"),
        **more,
    }


@pytest.fixture
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    pytest.importorskip("smg")
    values = {"$(KVSERVING_BIND_ADDRESS)": ADDRESS, "$(KVSERVING_DISCOVERY_FILE)": str(folder / "engines.json")}
    args = [values.get(arg, arg) for arg in render(pair(), site=LOCAL).router.args]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(folder / "launch.py"), *args], env=environment(folder), stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 60
        while status("/liveness", port=8081) != 200:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


def status(path: str, *, port: int = 8000, key: str | None = None, body: str | None = None) -> int | None:
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=5)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    try:
        connection.request("POST" if body else "GET", path, body=body, headers=headers)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_smg_runs_with_its_keys_and_shows_none(running: subprocess.Popen[bytes], folder: Path) -> None:
    request = json.dumps({"model": "m", "prompt": "a"})
    assert status("/workers") == 401
    assert status("/workers", key=ADMIN) == 200
    assert status("/v1/completions", body=request) == 401
    assert status("/v1/completions", body=request, key=CLIENT) != 401
    assert status("/readiness", port=8081) == 503
    shown = Path(f"/proc/{running.pid}/cmdline").read_bytes() + (folder / "log").read_bytes()
    assert ADMIN.encode() not in shown
    assert CLIENT.encode() not in shown


def run(folder: Path, code: str, **more: str) -> str:
    """What ``code`` prints with the launcher imported as ``launch``."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); import launch; {code}"]
    done = subprocess.run(command, env=environment(folder, **more), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_vllm_router_gets_no_key(folder: Path) -> None:
    assert run(folder, "print(launch.keys('vllm-router'))").strip() == "[]"


def test_an_empty_key_file_ends_the_launcher(folder: Path) -> None:
    (folder / "admin").write_text("\n")
    assert "KVSERVING_ROUTER_ADMIN_KEY_FILE" in run(folder, "launch.keys('smg')")


def test_vllm_router_gets_the_engines_of_the_file(folder: Path) -> None:
    workers = [
        {"url": "http://127.0.0.2:8000", "worker_type": "prefill"},
        {"url": "http://127.0.0.3:8000", "worker_type": "decode"},
    ]
    (folder / "engines.json").write_text(json.dumps({"version": 1, "workers": workers}))
    printed = run(folder, f"print(*launch.discovered({str(folder / 'engines.json')!r}, 2, 1.0))")
    assert printed.split() == ["--prefill", "http://127.0.0.2:8000", "none", "--decode", "http://127.0.0.3:8000"]


def test_vllm_router_does_not_start_without_its_engines(folder: Path) -> None:
    printed = run(folder, f"print(*launch.discovered({str(folder / 'engines.json')!r}, 2, 0.3))")
    assert "lists 0 of 2 engines" in printed


def test_the_local_vllm_router_waits_for_every_engine() -> None:
    env = render(pair(decode={"replicas": 3}, router={"type": "vllm-router"}), site=LOCAL).router.env
    assert env["KVSERVING_EXPECTED_WORKERS"] == "4"
    assert env["KVSERVING_WORKER_WAIT_SECONDS"] == "1800"
