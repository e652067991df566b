"""The cost model: estimates, hysteresis, bounded exploration."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvserving_connector.core import cost
from kvserving_connector.core.cost import CostModel, Curve

# One H100, vLLM 0.33 eager: tokens, seconds cold, seconds with the prompt in the engine's own cache.
COLD = ((512, 0.0495), (2000, 0.0571), (8000, 0.1487), (32000, 0.947))
HOST = ((512, 0.0502), (2000, 0.0637), (8000, 0.0813), (32000, 0.193))
ENGINE_HIT = ((512, 0.0490), (2000, 0.0346), (8000, 0.0480), (32000, 0.070))


def taught(prefill: Callable[[int], float], load: Callable[[int], float], sizes: tuple[int, ...]) -> CostModel:
    model = CostModel()
    for _ in range(cost.EVIDENCE):
        for size in sizes:
            model.observe_prefill(size, prefill(size))
            model.observe_load("l1", size, load(size))
    return model


def changes(decisions: list[bool]) -> int:
    return sum(a != b for a, b in itertools.pairwise(decisions))


def test_a_curve_keeps_fixed_costs_and_growth_apart() -> None:
    curve = Curve()
    for tokens, seconds in COLD:
        curve.observe(tokens, seconds)
    assert [curve.estimate(tokens) for tokens, _ in COLD] == pytest.approx([seconds for _, seconds in COLD])
    assert 0.0571 < curve.estimate(4000) < 0.1487
    assert curve.estimate(0) == 0.0
    # Beyond what was seen, the growth between the last two goes on.
    assert curve.estimate(64000) == pytest.approx(0.947 + (0.947 - 0.1487) / 24000 * 32000)


def test_an_estimate_moves_with_what_is_measured_and_counts_it() -> None:
    curve = Curve()
    for _ in range(40):
        curve.observe(1000, 0.1)
    for _ in range(40):
        curve.observe(1000, 0.3)
    assert curve.count == 80
    assert curve.evidence(1000) == 80
    assert curve.evidence(100_000) == 0
    assert curve.estimate(1000) == pytest.approx(0.3, rel=0.05)
    assert curve.seconds_per_token == pytest.approx(0.0003, rel=0.05)


def test_one_stall_is_no_trend() -> None:
    curve = Curve()
    for _ in range(20):
        curve.observe(1000, 0.1)
    curve.observe(1000, 60.0)
    assert curve.estimate(1000) < 0.2


@pytest.mark.parametrize(("tokens", "seconds"), [(0, 1.0), (5, -0.1), (5, math.inf), (5, math.nan)])
def test_what_is_no_observation_is_refused(tokens: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="no observation"):
        Curve().observe(tokens, seconds)


@pytest.mark.parametrize(("hit", "new"), [(0, 10), (11, 10)])
def test_an_impossible_hit_is_refused(hit: int, new: int) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        CostModel().decide("l1", hit, new)


def test_without_evidence_every_hit_is_taken() -> None:
    model = CostModel()
    for _ in range(cost.EVIDENCE - 1):
        assert model.decide("l1", 1000, 1001).load
        model.observe_prefill(1001, 0.001)
        model.observe_load("l1", 1000, 9.0)
    assert model.decide("l1", 1000, 1001).load
    model.observe_prefill(1001, 0.001)
    model.observe_load("l1", 1000, 9.0)
    assert not all(model.decide("l1", 1000, 1001).load for _ in range(cost.FIRST_DWELL))


def test_the_recorded_card_loads_long_hits_and_computes_short_ones() -> None:
    """A load alone is slower than computing at 512 and 2,000 tokens there, and 5 times faster at 32,000."""
    model = CostModel()
    for _ in range(cost.EVIDENCE):
        for (tokens, cold), (_, host), (_, hit) in zip(COLD, HOST, ENGINE_HIT, strict=True):
            model.observe_prefill(tokens, cold)
            model.observe_prefill(16, hit)
            model.observe_load("l1", tokens - 16, max(host - hit, 0.001))
    settled: dict[int, bool] = {}
    for tokens, _ in COLD:
        for _ in range(cost.FIRST_DWELL):
            settled[tokens] = model.decide("l1", tokens - 16, tokens).load
    assert settled == {512: False, 2000: False, 8000: True, 32000: True}


def test_the_rest_of_the_prompt_counts() -> None:
    """A tier that is faster per token loses where a load costs much at once and the hit is a small part."""
    model = taught(lambda tokens: 1e-5 * tokens, lambda tokens: 0.05 + 1e-6 * tokens, (64, 1024, 8192))
    verdicts = {hit: [model.decide("l1", hit, 8192) for _ in range(cost.FIRST_DWELL)][-1].load for hit in (64, 8191)}
    assert verdicts == {64: False, 8191: True}


def test_tiers_are_judged_apart() -> None:
    model = taught(lambda tokens: 1e-4 * tokens, lambda tokens: 1e-6 * tokens, (1024,))
    for _ in range(cost.EVIDENCE):
        model.observe_load("l2", 1024, 5.0)
    verdicts = {tier: [model.decide(tier, 1024, 1200) for _ in range(cost.FIRST_DWELL)][-1] for tier in ("l1", "l2")}
    assert verdicts["l1"].load
    assert not verdicts["l2"].load


def test_a_tier_that_recovers_is_found_again_and_one_that_breaks_is_left() -> None:
    model = taught(lambda _: 0.2, lambda _: 0.02, (1024,))
    phases = ((0.02, True), (2.0, False), (0.02, True))
    for seconds, expected in phases:
        loads = []
        for _ in range(2000):
            verdict = model.decide("l1", 1000, 1024)
            loads.append(verdict.load)
            if verdict.load:
                model.observe_load("l1", 1000, seconds)
                model.observe_prefill(24, 0.001)
            else:
                model.observe_prefill(1024, 0.2)
        share = sum(loads[-500:]) / 500
        assert share > 0.9 if expected else share < 0.1, (seconds, share)


def decisions_under_noise(seed: int, ratio: float, noise: float) -> list[bool]:
    """Return 2,000 choices where a load takes ``ratio`` times as long as computing, each within ``noise`` of its mean.

    The seeds are fixed: what holds for nearly every sequence is not for a search that looks for the worst one.
    """
    model, rng = CostModel(), random.Random(seed)

    def noisy(seconds: float) -> float:
        return seconds * rng.uniform(1 - noise, 1 + noise)

    for _ in range(cost.EVIDENCE):
        model.observe_prefill(1024, noisy(0.1))
        model.observe_load("l1", 1000, noisy(0.1 * ratio))
    decisions = []
    for _ in range(2000):
        verdict = model.decide("l1", 1000, 1024)
        if not verdict.measuring:
            decisions.append(verdict.load)
        if verdict.load:
            model.observe_load("l1", 1000, noisy(0.1 * ratio))
        else:
            model.observe_prefill(1024, noisy(0.1))
    return decisions


@pytest.mark.parametrize(("ratio", "loads"), [(0.3, True), (0.5, True), (1.5, False), (3.0, False)])
def test_noise_does_not_hide_which_is_faster(ratio: float, loads: bool) -> None:
    for seed in range(40):
        decisions = decisions_under_noise(seed, ratio, noise=0.6)
        assert decisions[-1] is loads, seed
        assert changes(decisions) <= 2, seed


@pytest.mark.parametrize("ratio", [0.8, 0.9, 1.0, 1.1])
def test_where_both_cost_the_same_noise_seldom_changes_the_choice(ratio: float) -> None:
    counts = [changes(decisions_under_noise(seed, ratio, noise=0.6)) for seed in range(40)]
    assert sum(counts) / len(counts) <= 2.5
    assert max(counts) <= 6


@given(
    pattern=st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3)), min_size=1, max_size=60),
    repeats=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_measured_the_changes_and_the_exploration_are_bounded(
    pattern: list[tuple[float, float]], repeats: int
) -> None:
    samples = pattern * repeats
    model = taught(lambda _: 0.1, lambda _: 0.1, (1024,))
    decisions, explored, refused = [], 0, 0
    for load, compute in samples:
        verdict = model.decide("l1", 1024, 1025)
        if verdict.measuring:
            explored += 1
        else:
            decisions.append(verdict.load)
            refused += not verdict.load
        model.observe_load("l1", 1024, load)
        model.observe_prefill(1025, compute)
    bound = math.log2(cost.LAST_DWELL / cost.FIRST_DWELL) + 1 + len(samples) / cost.LAST_DWELL
    assert changes(decisions) <= bound
    assert explored <= refused / (cost.FIRST_PAUSE - 1)


@given(
    pattern=st.lists(
        st.tuples(st.integers(1, 1023), st.floats(1e-6, 1e3), st.floats(1e-6, 1e3)), min_size=1, max_size=60
    ),
    repeats=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_hits_of_any_length_change_the_choice_for_unseen_ones_no_more_often(
    pattern: list[tuple[int, float, float]], repeats: int
) -> None:
    samples = pattern * repeats
    model = taught(lambda _: 0.1, lambda _: 0.1, (1023,))
    decisions, explored, refused = [], 0, 0
    for hit, load, compute in samples:
        verdict = model.decide_unseen("l1", 1023, 1024)
        if verdict.measuring:
            explored += 1
        else:
            decisions.append(verdict.load)
            refused += not verdict.load
        model.observe_load("l1", hit, load, 1023)
        model.observe_prefill(1024, compute)
    bound = math.log2(cost.LAST_DWELL / cost.FIRST_DWELL) + 1 + len(samples) / cost.LAST_DWELL
    assert changes(decisions) <= bound
    assert explored <= refused / (cost.FIRST_PAUSE - 1)


def test_an_unseen_hit_is_expected_to_be_as_long_as_those_before() -> None:
    model = CostModel()
    assert model.expected("l2", 8191) == 8191
    for _ in range(cost.EVIDENCE):
        model.observe_load("l2", 2048, 1.0, 8191)
    assert model.expected("l2", 8191) == 2048
    assert model.expected("l2", 1000) == 1000
    with pytest.raises(ValueError, match="cannot be"):
        model.decide_unseen("l2", 0, 1000)
