from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from tests.connector.worker_cache.engine import Engine

Start = Callable[..., Engine]


@pytest.fixture
def start() -> Iterator[Start]:
    """Make engines. What none of them may do is checked at the end: promise what a rank does not hold."""
    started: list[Engine] = []

    def make(**settings: Any) -> Engine:
        engine = Engine(**settings)
        started.append(engine)
        return engine

    yield make
    try:
        for engine in started:
            assert [rank.false_promises for rank in engine.ranks] == [0] * len(engine.ranks), "false promises"
    finally:
        for engine in started:
            engine.close()
