from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.connector.store.servers import Server


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
