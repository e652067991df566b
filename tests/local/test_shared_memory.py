"""Shared memory of killed engines goes with them; that of living ones stays."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from kvserving_operator.local import procfs, shared_memory
from kvserving_operator.local.container import ProcessSpec
from kvserving_operator.local.logfile import LogFile
from kvserving_operator.local.process import Managed
from kvserving_operator.local.reaper import end_instance

HOLDER = """
import mmap, os, sys, time
with open(sys.argv[1], "a+b") as file:
    file.truncate(4096)
    held = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
time.sleep(600)
"""


STARTING = """
import sys, time
with open(sys.argv[1], "a+b"):
    print("opened", flush=True)
    time.sleep(600)
"""
"""An engine that has opened its file and does not map it yet."""


def path() -> Path:
    return shared_memory.FOLDER / f"psm_test_{secrets.token_hex(8)}"


def holder(file: Path, code: str = HOLDER, **environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, env=os.environ | environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() in (b"mapped\n", b"opened\n")
    return process


def test_a_killed_process_leaves_no_shared_memory(tmp_path: Path) -> None:
    file = path()

    async def main() -> None:
        log = LogFile(tmp_path / "log")
        spec = ProcessSpec((sys.executable, "-c", HOLDER, str(file)), dict(os.environ))
        process = await Managed.start(spec, log, tmp_path)
        while b"mapped" not in (tmp_path / "log").read_bytes():
            assert not process.ended.done()
            await asyncio.sleep(0.01)
        assert await process.measure() > 0
        os.kill(process.pid, signal.SIGKILL)
        await process.ended
        assert file.exists()
        await process.finish()
        log.close()

    asyncio.run(main())
    assert not file.exists()


def test_shared_memory_that_somebody_still_uses_stays() -> None:
    file = path()
    first, second = holder(file), holder(file)
    try:
        files = shared_memory.used([first.pid])
        assert files == {file}
        first.kill()
        first.wait()
        shared_memory.remove_unused(files)
        assert file.exists()
    finally:
        second.kill()
        second.wait()
    shared_memory.remove_unused(files)
    shared_memory.remove_unused(files)
    assert not file.exists()


def test_the_file_of_an_engine_that_has_not_mapped_it_yet_is_in_use() -> None:
    file = path()
    process = holder(file, STARTING)
    try:
        assert shared_memory.used([process.pid]) == {file}
        assert file not in shared_memory.unused()
        shared_memory.remove_unused({file})
        assert file.exists()
    finally:
        process.kill()
        process.wait()
    assert file in shared_memory.unused()
    shared_memory.remove_unused({file})
    assert not file.exists()


def test_an_engine_that_is_killed_before_it_maps_its_file_leaves_no_shared_memory() -> None:
    file, instance = path(), secrets.token_hex(8)
    process = holder(file, STARTING, **{procfs.INSTANCE: instance})
    assert end_instance(instance, grace=0.0) == 1
    assert process.wait() == -signal.SIGKILL
    assert not file.exists()


def test_what_the_reaper_kills_leaves_no_shared_memory() -> None:
    file, instance = path(), secrets.token_hex(8)
    process = holder(file, **{procfs.INSTANCE: instance})
    assert end_instance(instance, grace=0.0) == 1
    assert process.wait() == -signal.SIGKILL
    assert not file.exists()


def test_a_model_that_people_keep_in_shared_memory_stays() -> None:
    folder = shared_memory.FOLDER / f"models-{secrets.token_hex(8)}"
    folder.mkdir()
    files = [folder / "psm_model.safetensors", folder.with_suffix(".safetensors")]
    processes = [holder(file) for file in files]
    try:
        assert shared_memory.used([process.pid for process in processes]) == set()
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for file in files:
            file.unlink()
        folder.rmdir()


def test_what_is_left_is_measured_by_the_memory_that_it_takes() -> None:
    file = path()
    try:
        with file.open("wb") as written:
            written.write(b"x" * 8192)
            written.truncate(2**30)
        assert 8192 <= shared_memory.unused()[file] < 2**20
    finally:
        file.unlink()


SEMAPHORE = """
import multiprocessing, time
lock = multiprocessing.get_context("spawn").Lock()
print("made", lock._semlock.name, flush=True)
time.sleep(600)
"""
"""What vLLM makes for its workers: the process has it mapped by a name that is no more."""


def test_a_semaphore_of_a_killed_engine_goes_with_it_and_is_in_use_until_then(tmp_path: Path) -> None:
    async def main() -> Path:
        log = LogFile(tmp_path / "log")
        spec = ProcessSpec((sys.executable, "-c", SEMAPHORE), dict(os.environ))
        process = await Managed.start(spec, log, tmp_path)
        while b"made /mp-" not in (said := (tmp_path / "log").read_bytes()) or not said.endswith(b"\n"):
            assert not process.ended.done()
            await asyncio.sleep(0.01)
        file = shared_memory.FOLDER / f"sem.{said.split()[1].decode().removeprefix('/')}"
        assert file.exists()
        assert shared_memory.used([process.pid]) == {file}
        assert file not in shared_memory.unused()
        # Python's own tracker would remove it; one that is killed, as by the kernel, does not.
        trackers = [pid for pid in process.members() if pid != process.pid]
        assert trackers
        procfs.send(trackers, signal.SIGKILL)
        await process.signal(signal.SIGTERM)
        await process.ended
        assert file.exists()
        await process.finish()
        log.close()
        return file

    assert not asyncio.run(main()).exists()
