"""What the loader says of an object that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.api.objects import serving

from kvserving_operator.api.faults import InvalidSpec
from kvserving_operator.api.load import load


def faults(source: Any, *, strict: bool = True) -> list[str]:
    """Return the faults of a source that is refused, in order."""
    with pytest.raises(InvalidSpec) as refusal:
        load(source, strict=strict)
    return [str(fault) for fault in refusal.value.faults]


def refusal_of(path: str, value: Any) -> str:
    """Return the one fault of the small object with ``value`` at ``path``."""
    (fault,) = faults(serving({path: value}))
    return fault
