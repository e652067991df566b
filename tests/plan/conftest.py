"""Options of the plan's tests.

``pytest tests/plan --update-golden`` writes ``golden/*.yaml`` anew; read the difference
before committing it.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", default=False, help="write the golden plans anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden", default=False))
