"""A copy of a running engine with one thing changed, at an address of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 400
_BROKEN = Path(__file__).parent / "broken"


@contextmanager
def twin_of(
    pod: Mapping[str, Any],
    address: str,
    log: Path,
    change: Callable[[list[str]], list[str]] = lambda arguments: arguments,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run what the pod's process runs, with ``change`` applied to its arguments and ``environment`` added.

    Yields its URL once it is healthy; stops it in the end.
    """
    process = Path(f"/proc/{pod['pid']}")
    moved = (pod["address"], address)
    arguments = [part.replace(*moved) for part in process.joinpath("cmdline").read_text().split("\0")[:-1]]
    inherited = {name: value.replace(*moved) for name, value in _environment(pod).items()}
    # The mark of the service's own processes: the twin is ours to stop.
    inherited.pop("KVSERVING_INSTANCE", None)
    url = f"http://{address}:{pod['port']}"
    with open(log, "wb") as output:
        running = subprocess.Popen(
            change(arguments),
            env={**inherited, **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_healthy(running, url, log)
        yield url
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


@contextmanager
def corrupting_twin_of(pod: Mapping[str, Any], log: Path) -> Iterator[str]:
    """A twin of a decode engine that zeroes the first block of what it receives; yields its URL."""

    def broken(arguments: list[str]) -> list[str]:
        changed = [part.replace("kvserving_connector.vllm.nixl", "broken_transfer") for part in arguments]
        assert changed != arguments, "the twin would not be broken"
        return changed

    inherited = _environment(pod).get("PYTHONPATH", "")
    with twin_of(pod, "127.77.7.7", log, broken, {"PYTHONPATH": f"{_BROKEN}:{inherited}"}) as url:
        yield url


def _environment(pod: Mapping[str, Any]) -> dict[str, str]:
    entries = Path(f"/proc/{pod['pid']}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _wait_healthy(running: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if running.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url + "/health", timeout=3) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    end = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
    raise AssertionError(f"the twin at {url} is not healthy; exit status {running.poll()}\n{end}")
