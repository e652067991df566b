"""Looks at many things do not stay in step."""

from __future__ import annotations

from kvserving_operator.control.pauses import spread


def test_a_pause_is_a_tenth_longer_or_shorter_at_most() -> None:
    pauses = [spread(10) for _ in range(1000)]
    assert 9 <= min(pauses) < 9.5
    assert 10.5 < max(pauses) <= 11
