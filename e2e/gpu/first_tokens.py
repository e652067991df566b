"""Times to the first token with our connectors, with vLLM's own and without one, an engine each, on one machine.

    python -m e2e.gpu.first_tokens [--shape NAME] [--sides NAME,...] [--parts PART,...] [--out FILE] [-- NAME=JSON ...]

Run by the engines' interpreter, with the repository, ``operator/src`` and ``connector/src`` on PYTHONPATH. What follows
``--`` goes to vLLM. Parts: ``tiers`` (computed, from the engine's own cache, from L1), ``flood`` (500 other prompts
between two times), ``store`` (from files behind L1, by an engine of its own, for our connectors). Results are JSON
lines, printed and added to a file. The exit status is 1 when a part failed; an L1 slower than computing is a result.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import e2e.gpu.needed  # noqa: F401
from tests.kept import kept

from kvserving_operator.local import gpus

from . import needed, records
from .records import FAILED, LEFT_OUT, Records
from .sides import DEFAULT, SIDES
from .timed import GIB, SHAPES, Timed
from .words import count, parted, seconds

PARTS = ("tiers", "flood", "store")
LEAST_SECONDS = 60.0
"""Of what is left of the budget, for an engine to be started at all."""
GRACE_SECONDS = 30.0
"""Beyond its time, in which an engine writes down what it has, and ends."""
_REPOSITORY = Path(__file__).parents[2]
_FAULT_CHARACTERS = 4000


@dataclass(frozen=True)
class Task:
    """One engine: whose it is, and what it is asked."""

    side: str
    parts: tuple[str, ...]


def tasks(sides: Sequence[str], parts: Sequence[str]) -> list[Task]:
    """Return the engines to start, in order: those with a store, which writes meanwhile, after all others."""
    first = tuple(part for part in parts if part != "store")
    found = [Task(side, first) for side in sides] if first else []
    return found + [Task(side, ("store",)) for side in sides if "store" in parts and SIDES[side].ours]


@dataclass
class Lane:
    """Runs tasks, as many at once as there are ``devices``, and writes down what they found."""

    shape: Timed
    lengths: Sequence[int]
    models: Path
    store: Path
    records: Records
    budget: float
    devices: Sequence[str | None]
    more: Sequence[str] = ()
    _started: float = field(default_factory=time.monotonic)
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _told_to_end: bool = False

    def run(self, chosen: Sequence[Task]) -> None:
        """Run the tasks."""
        free: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        for device in self.devices:
            free.put(device)

        def one(task: Task) -> None:
            device = free.get()
            try:
                self._engine(task, device)
            finally:
                free.put(device)

        with ThreadPoolExecutor(len(self.devices)) as pool:
            try:
                list(pool.map(one, chosen))
            except BaseException:
                # Told to end: engines have sessions of their own, which no signal reaches.
                self._told_to_end = True
                for process in list(self._running):
                    kill(process)
                raise

    def _left(self) -> float:
        return self.budget - (time.monotonic() - self._started)

    def _engine(self, task: Task, device: str | None) -> None:
        if self._told_to_end:
            return
        started, seconds = time.monotonic(), self._left()
        if seconds < LEAST_SECONDS:
            for part in task.parts:
                self._add(part, task.side, LEFT_OUT, started, fault="no time is left of the budget")
            return
        with tempfile.TemporaryDirectory(prefix="first-tokens-", dir=self.store) as folder:
            found, log = Path(folder, "found.jsonl"), Path(folder, "log")
            found.touch()
            words = [task.side, ",".join(task.parts), f"--shape={self.shape.name}", f"--models={self.models}"]
            words.append(f"--l1-bytes={self.shape.l1_bytes}")
            words += [f"--lengths={','.join(map(str, self.lengths))}", f"--found={found}", f"--seconds={seconds}"]
            if "store" in task.parts:
                words.append(f"--store={folder}/store")
            limit = seconds + GRACE_SECONDS
            late = False
            try:
                status = run_engine([*words, "--", *self.more], environment(device), log, limit, self._running)
            except subprocess.TimeoutExpired:
                status, late = f"was stopped when the budget had ended, after {limit:.0f} s", True
            told = [json.loads(line) for line in found.read_text().splitlines()]
            fault = "" if status == 0 else f"the engine {status}: {ended(log)}"
            # One that has begun to measure writes down by itself what the budget leaves no time for.
            outcome = LEFT_OUT if late and not told else FAILED
        for one in told:
            self._add(one.pop("part"), task.side, one.pop("outcome"), time.monotonic() - one.pop("took"), **one)
        for part in task.parts[len(told) :]:
            self._add(part, task.side, outcome, started, fault=fault)
        if fault and len(told) == len(task.parts):
            self._add("end", task.side, FAILED, started, fault=fault)

    def _add(self, part: str, side: str, outcome: str, started: float, **found: Any) -> None:
        self.records.add(f"ttft-{part}", side, outcome, started, **found)


def run_engine(
    words: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    seconds: float,
    running: set[subprocess.Popen[bytes]],
) -> str | int:
    """Run one engine and all of its processes; return 0, or how it ended. While it runs it is one of ``running``.

    Raises subprocess.TimeoutExpired when it is stopped after ``seconds``.
    """
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "e2e.gpu.first_tokens_engine", *words],
            env=variables,
            cwd=_REPOSITORY,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running.add(process)
        try:
            status = process.wait(seconds)
            return status and f"ended with status {status}"
        finally:
            kill(process)
            running.discard(process)


def ended(log: Path) -> str:
    """Return the last line of a log, and below it the end of the log."""
    text = log.read_text(errors="replace").strip()
    return f"{text.rpartition(chr(10))[2]}\n{text[-_FAULT_CHARACTERS:]}"


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process' session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def environment(device: str | None) -> dict[str, str]:
    """Return the variables of an engine on a GPU, None for one on the CPU."""
    # Without a fixed seed two engines give equal blocks unequal hashes. FlashInfer's sampler is compiled at first use.
    found = {**os.environ, "PYTHONHASHSEED": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    return found if device is None else found | {"CUDA_VISIBLE_DEVICES": device}


@contextmanager
def folder_of(chosen: Path | None) -> Iterator[Path]:
    """Yield the folder for stores: the chosen one, or one that is removed."""
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen
        return
    with tempfile.TemporaryDirectory(prefix="first-tokens-") as folder:
        yield Path(folder)


def main() -> int:
    """Measure what the command line names; return the exit status."""
    models = kept() / "models"
    parser = argparse.ArgumentParser(prog="python -m e2e.gpu.first_tokens", description="Times to the first token.")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-4b", help="default: %(default)s")
    parser.add_argument("--sides", default=",".join(DEFAULT), help=f"of {', '.join(SIDES)}; default: %(default)s")
    parser.add_argument("--parts", help=f"of {', '.join(PARTS)}; default: all, tiers alone for a hybrid model")
    parser.add_argument("--lengths", help="tokens of prompts; default: those of the shape")
    parser.add_argument("--l1-gib", type=float, help="L1, in /dev/shm for most sides; default: takes the flood")
    parser.add_argument("--budget", type=seconds, default=3600, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--jobs", type=count, default=1, help="engines at once, each on a GPU of its own")
    parser.add_argument("--models", type=Path, default=models, help="where models are made (default: %(default)s)")
    parser.add_argument("--store", type=Path, help="folder in which stores are made (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=Path("first-tokens.jsonl"), help="default: %(default)s")
    own, behind = parted(sys.argv[1:])
    arguments = parser.parse_args(own)
    shape = SHAPES[arguments.shape]
    if missing := needed.lacking(needed.ENGINE_MODULES):
        parser.error(missing)
    if arguments.l1_gib is not None:
        shape = replace(shape, l1_bytes=int(arguments.l1_gib * GIB))
    sides = arguments.sides.split(",")
    parts = arguments.parts.split(",") if arguments.parts else list(PARTS if shape.dense else PARTS[:1])
    for option, words, known in (("--sides", sides, SIDES), ("--parts", parts, PARTS)):
        if unknown := [word for word in words if word not in known]:
            parser.error(f"{option}: no {', '.join(unknown)}; there are {', '.join(known)}")
    lengths = [int(length) for length in arguments.lengths.split(",")] if arguments.lengths else list(shape.lengths)
    devices: list[str | None] = [None]
    if shape.device == "gpu":
        if not (devices := list(gpus.visible()[: arguments.jobs])):
            parser.error(f"--shape {shape.name}: {records.NO_GPU}; --shape tiny runs without one")
        if len(devices) < arguments.jobs:
            parser.error(f"--jobs {arguments.jobs}: each takes a GPU, and there are {len(devices)}")
    elif arguments.jobs > 1:
        parser.error(f"--jobs {arguments.jobs}: engines on a CPU would measure each other")
    try:
        device = records.machine(shape.device)
    except ValueError as reason:
        parser.error(f"--shape {shape.name}: {reason}")
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "e2e.gpu.models", shape.model, str(arguments.models)], cwd=_REPOSITORY, check=True
    )
    common = {
        "device": device,
        "shape": shape.name,
        "jobs": arguments.jobs,
        "l1_bytes": shape.l1_bytes,
        "settings": behind,
        "versions": records.versions(sys.executable),
    }
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with folder_of(arguments.store) as store:
        lane = Lane(
            shape=shape,
            lengths=lengths,
            models=arguments.models,
            store=store,
            records=Records(arguments.out, common),
            budget=arguments.budget - (time.monotonic() - started),
            devices=devices,
            more=behind,
        )
        lane.run(tasks(sides, parts))
    return int(lane.records.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
