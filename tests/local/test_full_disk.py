"""A disk that takes nothing more, before and after it does again."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from kvserving_operator.local import client, procfs, state
from kvserving_operator.local.logfile import LogFile
from kvserving_operator.local.state import ServiceDir, State

from .support import Service, deployment, pod, run_of


def test_a_service_goes_on_where_its_state_cannot_be_written(
    directory: ServiceDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = asyncio.Event()
    write = state.write_atomic

    def limited(path: Path, text: str, mode: int = 0o600) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, text, mode)

    monkeypatch.setattr("kvserving_operator.local.state.write_atomic", limited)
    monkeypatch.setattr("kvserving_operator.local.discovery.write_atomic", limited)

    async def go() -> None:
        async with Service(run_of(deployment("prefill"), deployment("decode")), directory) as service:
            before = await service.until(lambda s: s.phase == "Ready")
            full.set()
            os.kill(pod(before, "decode").pid, 9)
            told = await service.until(lambda s: pod(s, "decode").restarts == 1)
            assert "the state cannot be written: " in told.message
            assert "No space left on device" in told.message
            await service.until(
                lambda s: s.phase == "Ready" and pod(s, "decode").pid not in (None, pod(before, "decode").pid)
            )
            full.clear()
            healed = await service.until(lambda s: not s.message)
            await service.until(lambda s: s.updated > healed.updated)
            written = directory.read()
            assert written is not None
            assert pod(written, "decode").restarts == 1
            assert "svc-decode-0.2" in directory.discovery_file.read_text()

    asyncio.run(go())


def test_status_says_that_a_supervisor_writes_nothing(directory: ServiceDir) -> None:
    silent = State.from_dict(
        {
            "name": "svc", "revision": "r", "phase": "Ready", "router": {"url": "u"}, "engine_python": "", "pods": [],
            "served_model": "m", "updated": 1.0,
            "supervisor": {"pid": os.getpid(), "start_time": procfs.start_time(os.getpid())},
        }
    )  # fmt: skip
    directory.create()
    directory.write(silent)
    found = client.current(directory)
    assert found is not None
    assert "its supervisor has written nothing for " in found.message


def test_a_log_goes_on_after_a_full_disk_and_says_what_is_missing(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "pod.log")
    log.write(b"before\n")
    sound, log._file = log._file, open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    log.write(b"lost: Loading weights took 3 s\n")
    log.write(b"lost as well\n")
    log._file.close()
    log._file = sound
    log.write(b"after\n")
    log.close()
    assert (tmp_path / "pod.log").read_text() == (
        "before\n[kvserving] 44 bytes of output are missing here: No space left on device\nafter\n"
    )
    assert log.notable == "Loading weights took 3 s"
    assert log.tail(2) == ["lost as well", "after"]


def test_a_state_that_cannot_be_replaced_leaves_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        state.write_atomic(tmp_path / "state.json", "{}")
    assert not list(tmp_path.iterdir())
