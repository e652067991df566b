from __future__ import annotations

import pytest

from kvserving_operator.control.recompute import LEAST_TOKENS, judge
from kvserving_operator.verify.counters import Counters


@pytest.mark.parametrize(
    ("queries", "hits", "expected"),
    [
        (0, 0, None),
        (LEAST_TOKENS - 1, 0, None),
        (LEAST_TOKENS, 0, True),
        (10_000, 4_999, True),
        (10_000, 9_990, False),
    ],
)
def test_a_window_tells_by_the_share_of_tokens_that_came_from_outside(
    queries: int, hits: int, expected: bool | None
) -> None:
    found = judge({"d": Counters(external_queries=queries, external_hits=hits)})
    assert found.recomputing is expected


def test_one_decode_that_recomputes_is_enough_and_is_named_with_the_guards_reasons() -> None:
    found = judge(
        {
            "good": Counters(external_queries=5_000, external_hits=5_000),
            "bad": Counters(external_queries=5_000, external_hits=0, refused={"expired": 3}),
        }
    )
    assert found.recomputing
    assert "decode bad" in found.message
    assert "expired" in found.message
    assert "1 of 2" in found.message
