"""A state folder of its own for every test, and no variable of the developer's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvserving_operator.local.state import ServiceDir

from .machine import Machine
from .support import NAME


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSERVING_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("KVSERVING_ENGINE_PYTHON", "KVSERVING_ROUTER_PYTHON", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def directory(tmp_path: Path) -> ServiceDir:
    return ServiceDir(NAME, tmp_path / "state")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made("down", "--all")
