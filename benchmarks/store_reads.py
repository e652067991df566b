"""How fast the L2 tier reads, against the store's own benchmark client and against plain reads (goal G4)."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .engine_python import command, environment
from .store_server import store_server
from .table import Table

ROUNDS = 15
SECONDS = 0.8
THREADS = 4
SIZES = (2**18, 2**20, 2**22)
TOTAL_BYTES = 2**28

Measure = Callable[[], float]


def run() -> Table:
    """Measure all in turns, for three sizes of chunks. Raises NotMeasured without a server or the engine's Python."""
    benchmark = shutil.which("valkey-benchmark") or shutil.which("redis-benchmark")
    rows: list[tuple[str, ...]] = []
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            with store_server(Path(folder)) as port, _reader(f"redis://127.0.0.1:{port}", size) as ask:
                own: Measure | None = None
                if benchmark is not None:
                    own = _own_client(benchmark, port, size)
                rows.append(_row("Valkey", size, ask, own))
            with _reader(f"file://{folder}/objects", size) as ask:
                rows.append(_row("files", size, ask, None))
    client = (
        f"Own client: `{Path(benchmark).name}` on the same server, GET of any of the objects"
        if benchmark is not None
        else "Own client: not measured, there is neither valkey-benchmark nor redis-benchmark here"
    )
    note = (
        f"{THREADS} threads or connections each, one request under way on each, {TOTAL_BYTES // 2**20} MiB of objects, "
        f"medians of {ROUNDS} rounds of {SECONDS} s in turns; ratios are medians of the rounds' ratios. {client}; it "
        "discards what it receives. Plain reads: a loop over `recv` into one buffer, or `readv` of the same files, "
        "which are not in the page cache. The tier also verifies every chunk (BLAKE3) and copies it to host memory, on "
        "the cores that the server runs on."
    )
    header = ("store", "chunk", "tier MiB/s", "own client MiB/s", "plain MiB/s", "ratio to own client", "to plain")
    return Table("Reads of the L2 tier", note, header, tuple(rows))


def _row(store: str, size: int, ask: Callable[[str], float], own: Measure | None) -> tuple[str, ...]:
    measures: dict[str, Measure] = {"tier": lambda: ask("tier"), "plain": lambda: ask("plain")}
    if own is not None:
        measures["own"] = own
    rounds = [{name: measure() for name, measure in measures.items()} for _ in range(ROUNDS)]

    def rate(name: str) -> str:
        return f"{statistics.median(one[name] for one in rounds) / 2**20:,.0f}" if name in measures else "-"

    def ratio(name: str) -> str:
        return f"{statistics.median(one['tier'] / one[name] for one in rounds):.2f}" if name in measures else "-"

    return store, f"{size // 1024} KiB", rate("tier"), rate("own"), rate("plain"), ratio("own"), ratio("plain")


@contextmanager
def _reader(url: str, size: int) -> Iterator[Callable[[str], float]]:
    """The reader's process, with the objects stored; what is yielded runs a round and returns bytes a second."""
    words = [url, str(size), str(TOTAL_BYTES // size), str(THREADS), str(SECONDS)]
    with subprocess.Popen(
        command("store_reader", *words), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None

        def ask(kind: str) -> float:
            print(kind, file=asked, flush=True)
            return float(answers.readline())

        if not answers.readline():
            raise SystemExit(f"store-reads: the reader of {url} ended before its first round")
        yield ask
        asked.close()


def _own_client(benchmark: str, port: int, size: int) -> Measure:
    """Rounds of the store's client: GETs of any of the objects, as many as take about as long as a round."""
    objects = TOTAL_BYTES // size
    number = int(SECONDS * 3e9 / size)
    get = ["GET", "key:__rand_int__"]
    words = [benchmark, "-p", str(port), "-r", str(objects), "-q", "--csv", "-c", str(THREADS), "-n", str(number), *get]

    def measure() -> float:
        found = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        rate = re.search(r'^"GET[^"]*","([\d.]+)"', found, re.MULTILINE)
        assert rate is not None, found
        return float(rate[1]) * size

    return measure
