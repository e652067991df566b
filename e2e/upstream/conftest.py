"""Fixtures of the gate: vLLM's own tests against classes of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.local.real_model import NoEngine
from e2e.upstream.runs import Outcome, run_tests
from e2e.upstream.sources import NEWEST, Sources, prepare

Upstream = Callable[..., Outcome]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engines)
            if item.config.pluginmanager.hasplugin("timeout"):
                item.add_marker(pytest.mark.timeout(1800))


def _prepared(wheel: str = "") -> Sources:
    try:
        return prepare(wheel)
    except NoEngine as reason:
        raise pytest.UsageError(f"{reason}; `make e2e-upstream` sets it") from reason


@pytest.fixture(scope="session")
def sources() -> Sources:
    return _prepared()


@pytest.fixture(scope="session")
def newest_sources() -> Sources:
    return _prepared(NEWEST)


@pytest.fixture
def upstream(sources: Sources, tmp_path: Path) -> Upstream:
    """Run a file or test of vLLM's: ``upstream(target, options=…, environment=…, path=…) -> Outcome``."""
    return _runner(sources, tmp_path)


@pytest.fixture
def newest(newest_sources: Sources, tmp_path: Path) -> Upstream:
    """Run those of the newest vLLM that we know, from its wheel, likewise."""
    return _runner(newest_sources, tmp_path)


def _runner(sources: Sources, tmp_path: Path) -> Upstream:
    def run(target: str, **arguments: Any) -> Outcome:
        scratch = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        scratch.mkdir()
        outcome = run_tests(sources, scratch, target, **arguments)
        print(f"vLLM {sources.version} {target}: {outcome}")
        return outcome

    return run
