"""How large tiers are, and where they would be of little use."""

from __future__ import annotations

import pytest
from tests.sizing.support import QWEN, lines, sizing


def test_tiers_hold_what_is_new_in_their_time_and_l2_is_never_full() -> None:
    found = sizing(prompt=4000, rate=10, reused=0.5, l1_horizon=60.0, l2_horizon=120.0)
    new = 10 * 2000 * 147_456
    assert found.tiers.l1 == -(-new * 60 // found.prefill.replicas // 2**30)
    assert found.tiers.l2 == -(-new * 120 // 0.85 // 2**30)


def test_an_l1_smaller_than_the_engines_own_cache_is_told() -> None:
    small, large = (sizing(rate=5, reused=0.5, l1_horizon=horizon).tiers for horizon in (10.0, 600.0))
    assert [notice.partition(" is smaller than the engine's own cache (55.2 GB)")[0] for notice in small.notices] == [
        "L1 of 14 GiB"
    ]
    assert large.notices == ()


def test_a_store_that_is_slower_than_computing_is_told() -> None:
    slow = sizing(QWEN, rate=1, reused=0.5, l2_horizon=60.0)
    assert "a read takes 104 ms, computing 43.2 ms" in slow.tiers.notices[0]
    assert "from 3 shards on" in slow.tiers.notices[0]
    told = lines(slow)
    assert told["L2: time of a read"].value > told["L2: time to compute it instead"].value
    # Three shards, because of the rate.
    assert sizing(QWEN, rate=20, reused=0.5, l2_horizon=60.0).tiers.notices == ()


def test_where_computing_takes_no_longer_no_store_helps() -> None:
    [notice] = sizing("hf://Qwen/Qwen3-0.6B", prompt=20, output=2, reused=0.5, l2_horizon=60.0).tiers.notices
    assert "no number of shards helps" in notice


def test_more_reads_take_more_shards() -> None:
    shards = [sizing(rate=rate, reused=0.5, l2_horizon=10.0).tiers.shards for rate in (1, 10, 100)]
    assert shards == [1, 2, 15]


@pytest.mark.parametrize(("horizon", "size"), [(None, None), (0.0, 0)])
def test_a_tier_that_is_not_asked_for_has_no_size(horizon: float | None, size: int | None) -> None:
    tiers = sizing(reused=0.5, l1_horizon=horizon, l2_horizon=horizon).tiers
    assert (tiers.l1, tiers.l2, tiers.lines, tiers.notices) == (size, size, (), ())
