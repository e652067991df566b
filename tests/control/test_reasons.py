"""Reasons are promises: each one that is declared is set somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kvserving_operator
from kvserving_operator import reasons
from kvserving_operator.reasons import Reason

PACKAGE = Path(kvserving_operator.__file__).parent
NAMED = {
    name
    for file in PACKAGE.rglob("*.py")
    if file != Path(reasons.__file__)
    for name in re.findall(r"\bReason\.([A-Z0-9_]+)", file.read_text())
}


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: str(reason.value))
def test_every_declared_reason_is_set_somewhere(reason: Reason) -> None:
    assert reason.name in NAMED
