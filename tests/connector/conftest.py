"""Fixtures of the connector's tests; in their lane a file that is skipped for want of the engine is a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.connector.store.servers import Server

# `make test-connector` says so; elsewhere what needs no engine is tested alone.
REQUIRED = os.environ.get("KVSERVING_ENGINE_TESTS") == "required"
ENGINE = ("torch", "nixl._api", "vllm")
# Another process of the same lane runs it.
_ELSEWHERE = "Skipped: KVSERVING_KVCACHED names no sources"


class NoneSkipped:
    """Fails a file or folder that skips itself."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            if not reason.startswith(_ELSEWHERE):
                report.outcome = "failed"
                report.longrepr = "\n".join((f"{reason}: it must run in this lane", *_missing()))
        return report


def pytest_configure(config: pytest.Config) -> None:
    # A plugin, since a folder whose conftest.py skips it is collected without the hooks of any conftest.py.
    if REQUIRED:
        config.pluginmanager.register(NoneSkipped())


def _missing() -> Iterator[str]:
    """Why parts of the engine cannot be imported."""
    for name in ENGINE:
        try:
            import_module(name)
        except Exception as error:
            yield f"import {name}: {type(error).__name__}: {error}"


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    """Closes at the end what a test has started."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*arguments: str, **options: Any) -> Server:
        server = Server(tmp_path / "servers", *arguments, **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()
