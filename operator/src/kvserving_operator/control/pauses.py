"""Pauses between looks at many things."""

from __future__ import annotations

import random


def spread(seconds: float) -> float:
    """Return ``seconds``, up to a tenth more or less: looks that begin together do not stay in step."""
    return seconds * random.uniform(0.9, 1.1)  # noqa: S311 - spreads load, no secret
