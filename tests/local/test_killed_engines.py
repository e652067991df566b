"""Engines that are killed, in whatever order, leave no shared memory: also what was made a moment before.

What they make nobody has looked at: the supervisor looks every few seconds, and much later under memory pressure.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvserving_operator.local import procfs, shared_memory
from kvserving_operator.local.container import ProcessSpec
from kvserving_operator.local.lifeline import Lifeline
from kvserving_operator.local.logfile import LogFile
from kvserving_operator.local.process import Managed
from kvserving_operator.local.reaper import end_instance

ENGINE = """
import multiprocessing, os, signal, sys, time
from multiprocessing.shared_memory import SharedMemory

def worker(lock, ready):
    print("worker", os.getpid(), flush=True)
    ready.set()
    time.sleep(600)

def core():
    spawn = multiprocessing.get_context("spawn")
    lock, ready, ring = spawn.Lock(), spawn.Event(), SharedMemory(create=True, size=2**20)
    process = spawn.Process(target=worker, args=(lock, ready))
    process.start()
    ready.wait()
    print("made", ring.name, "sem." + lock._semlock.name.strip("/"), "core", os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    # An engine that loads does not heed it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    multiprocessing.get_context("spawn").Process(target=core).start()
    time.sleep(600)
"""
"""An engine as vLLM starts one: a server, its core and a worker, which share a ring of messages and a lock."""


class Started:
    """An engine that has made its shared memory."""

    def __init__(self, said: str) -> None:
        words = said.split()
        self.worker = int(words[words.index("worker") + 1])
        self.core = int(words[words.index("core") + 1])
        made = words.index("made")
        self.files = [shared_memory.FOLDER / name for name in words[made + 1 : made + 3]]
        assert all(file.exists() for file in self.files)

    @property
    def left(self) -> list[Path]:
        return [file for file in self.files if file.exists()]


def worker_then_its_parents(process: Managed, engine: Started) -> None:
    os.kill(engine.worker, signal.SIGKILL)
    os.kill(engine.core, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)


def all_but_the_worker(process: Managed, engine: Started) -> None:
    os.kill(process.pid, signal.SIGKILL)
    os.kill(engine.core, signal.SIGKILL)


def core_alone(process: Managed, engine: Started) -> None:
    os.kill(engine.core, signal.SIGKILL)


def nothing_but_the_request_to_stop(process: Managed, engine: Started) -> None:
    os.kill(process.pid, signal.SIGTERM)


@pytest.mark.parametrize(
    "killed", [worker_then_its_parents, all_but_the_worker, core_alone, nothing_but_the_request_to_stop]
)
@pytest.mark.parametrize("starts", [1, 2])
def test_an_engine_that_is_killed_leaves_no_shared_memory_though_nobody_looked_at_it_before(
    killed: Callable[[Managed, Started], None], starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "used", lambda pids: set())
    program = tmp_path / "engine.py"
    program.write_text(ENGINE)

    async def main() -> None:
        for number in range(starts):
            log = LogFile(tmp_path / f"log-{number}")
            process = await Managed.start(ProcessSpec((sys.executable, str(program)), dict(os.environ)), log, tmp_path)
            try:
                engine = Started(await said(process, tmp_path / f"log-{number}"))
                killed(process, engine)
            finally:
                await process.finish()
                log.close()
            assert not engine.left
            assert not procfs.session_processes(process.pid)

    asyncio.run(main())


@pytest.mark.parametrize("by", ["reaper", "lifeline"])
def test_what_ends_a_run_leaves_no_shared_memory_though_nobody_looked_at_it_before(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "used", lambda pids: set())
    (tmp_path / "engine.py").write_text(ENGINE)
    instance = secrets.token_hex(8)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "engine.py")],
        stdout=subprocess.PIPE, text=True, env=os.environ | {procfs.INSTANCE: instance},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        engine = Started(process.stdout.readline() + process.stdout.readline())
        os.kill(engine.worker, signal.SIGKILL)
        if by == "reaper":
            assert end_instance(instance, grace=0.0) >= 2
        else:
            asyncio.run(Lifeline(instance).close())
        assert not procfs.instance_processes(instance)
    assert not engine.left


async def said(process: Managed, log: Path) -> str:
    async with asyncio.timeout(60):
        while " core " not in (text := log.read_text()) or not text.endswith("\n"):
            assert not process.ended.done(), text
            await asyncio.sleep(0.02)
    return text
