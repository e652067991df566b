"""Fixtures of the tests with real engines: models, one service at a time, the yardstick."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.local import real_model
from e2e.local.asking import Question, Reply, Texts, ask_all
from e2e.local.stage import Service, Stage, Topology

_STAGES = pytest.StashKey[list[Stage]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engines)
            if item.config.pluginmanager.hasplugin("timeout"):
                item.add_marker(pytest.mark.timeout(900))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for stage in config.stash.get(_STAGES, []):
        if stage.numbers:
            terminalreporter.section("measured")
            for line in stage.numbers:
                terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def engine_python() -> str:
    try:
        return real_model.engine_python()
    except real_model.NoEngine as reason:
        raise pytest.UsageError(f"{reason}; `make e2e-local` sets it") from reason


@pytest.fixture(scope="session")
def models(engine_python: str) -> Path:
    """Folder of the tiny models, which are made once per machine."""
    made = [real_model.tiny_model(engine_python, kind) for kind in ("qwen3", "gemma3", "qwen3-next", "falcon-h1")]
    return made[0].parent


@pytest.fixture(scope="session")
def stage(engine_python: str, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("services"), engine_python)
    pytestconfig.stash.setdefault(_STAGES, []).append(stage)
    yield stage
    stage.clear()


@pytest.fixture(scope="session")
def qwen3(models: Path) -> Path:
    return models / "tiny-qwen3"


@pytest.fixture(scope="session")
def texts(qwen3: Path) -> Texts:
    return Texts(qwen3)


@pytest.fixture(scope="session")
def single(qwen3: Path) -> Topology:
    """One engine that does both: the yardstick."""
    return Topology("single", qwen3, prefill=0)


@pytest.fixture(scope="session")
def expected(stage: Stage, single: Topology, texts: Texts) -> dict[Question, Reply]:
    """What one engine answers."""
    return asyncio.run(ask_all(stage.show(single).url, texts, "expected"))


@pytest.fixture
def one_to_one(stage: Stage, expected: object, odd_expected: object, qwen3: Path) -> Service:
    return stage.show(Topology("one-to-one", qwen3))


@pytest.fixture(scope="session")
def odd_expected(stage: Stage, single: Topology, texts: Texts) -> dict[str, Reply]:
    """What one engine answers to several prompts in one request and to several choices."""
    from e2e.local.odd import ask_odd

    return asyncio.run(ask_odd(stage.show(single).url, texts))
