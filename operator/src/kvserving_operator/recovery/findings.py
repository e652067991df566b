"""What the judges find."""

from __future__ import annotations

from dataclasses import dataclass

from ..reasons import Reason


@dataclass(frozen=True)
class Finding:
    """An engine that only a restart helps.

    ``sentence`` says what is wrong and holds no number that changes with time. ``idle``: it serves nobody as it is, so
    that nothing is lost with it.
    """

    pod: str
    reason: Reason
    sentence: str
    idle: bool
