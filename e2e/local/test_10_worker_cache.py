"""L1 of the workers: two ranks of which one has less room and fails loads; and behind a router, with L2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from e2e.local.asking import Texts
from e2e.local.inside import seen
from e2e.local.stage import Stage
from e2e.local.tiers import Asker
from e2e.local.worker_tiers import LARGE, SMALL, Owned, comes_back, l1

WARM = 608 + 256
"""Whole blocks of 32 of the prompts of 640 and 257 tokens, one token of each being left to compute."""


@pytest.fixture(scope="module")
def ranks(engine_python: str, qwen3: Path) -> dict[str, Any]:
    """What ``e2e.inside.worker_cache`` saw of one engine."""
    return seen(engine_python, "worker_cache", str(qwen3))


def test_two_ranks_load_what_the_engine_gave_up(ranks: dict[str, Any]) -> None:
    cold, warm = ranks["cold"], ranks["warm"]
    assert warm["ids"] == cold["ids"]
    assert (cold["loaded"], cold["spared"]) == (0, 0)
    assert warm["loaded"] == warm["hits"] == warm["spared"] == WARM
    assert warm["own"] == 0


def test_what_the_smaller_rank_gave_up_is_not_promised(ranks: dict[str, Any]) -> None:
    large, small = ranks["full"]["used"]
    assert large > ranks["full"]["capacity"][1] >= small
    assert ranks["evicted"]["ids"] == ranks["cold"]["ids"]
    assert (ranks["evicted"]["promised"], ranks["evicted"]["spared"]) == (0, 0)


def test_loads_that_one_rank_fails_are_computed_and_not_counted_as_loaded(ranks: dict[str, Any]) -> None:
    for asked in ranks["failing"]:
        assert asked["ids"] == ranks["cold"]["ids"]
        assert asked["reasons"] == ["length"]
        assert asked["promised"] == WARM
        assert asked["loaded"] == asked["spared"] == asked["promised"] - asked["failed"]
    assert sum(asked["failed"] for asked in ranks["failing"]) > 0
    assert sum(asked["loaded"] for asked in ranks["failing"]) > 0


def test_the_scheduler_tracks_what_both_ranks_hold_and_lets_go_of_all_blocks(ranks: dict[str, Any]) -> None:
    for moment in ("stored", "full", "failed"):
        assert ranks[moment]["agrees"], moment
        assert ranks[moment]["tracked"] > 0, moment
        assert ranks[moment]["held"] == 0, moment


def test_other_kv_in_l1_shows_in_the_answers(ranks: dict[str, Any]) -> None:
    assert ranks["spoiled"]["loaded"] == WARM
    for sound, spoiled in zip(ranks["cold"]["ids"], ranks["spoiled"]["ids"], strict=True):
        assert sound != spoiled


@pytest.fixture
def both(stage: Stage, qwen3: Path, texts: Texts) -> Asker:
    cache = {"l1": l1(), "l2": {"size": "256Mi", "loads": "always"}}
    return Asker(stage.show(Owned("workers-l1-l2", qwen3, prefill=0, cache=cache)), texts)


def test_behind_a_router_l1_comes_before_l2(both: Asker, stage: Stage) -> None:
    comes_back(both, stage, "l1", seed=50, flood=SMALL)


def test_behind_a_router_l2_has_what_l1_gave_up(both: Asker, stage: Stage) -> None:
    comes_back(both, stage, "l2", seed=51, flood=LARGE)
