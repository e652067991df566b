"""Programs that a signal breaks off, at moments that are hard to meet."""

from __future__ import annotations

import os
import signal
import subprocess
from types import FrameType
from typing import Any

import pytest
from e2e.controlplane import commands


class Broken(Exception):
    pass


def test_a_signal_that_comes_before_the_wait_has_begun_ends_the_program_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[subprocess.Popen[str]] = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        _told = False

        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            made.append(self)

        def _communicate(self, *arguments: Any) -> Any:
            if not self._told:
                self._told = True
                os.kill(os.getpid(), signal.SIGTERM)
            return super()._communicate(*arguments)  # type: ignore[misc]

    def handle(_: int, __: FrameType | None) -> None:
        raise Broken

    monkeypatch.setattr(subprocess, "Popen", Popen)
    before = signal.signal(signal.SIGTERM, handle)
    try:
        with pytest.raises(Broken):
            commands.run(["sleep", "600"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert made[0].returncode == -signal.SIGTERM
