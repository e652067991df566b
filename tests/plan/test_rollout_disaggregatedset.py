"""Compared with what DisaggregatedSet of kubernetes-sigs/lws documents: KEP-766, commit 060ab4da.

Its rollout counts what workloads were told and waits until all are ready, so the comparison runs in a
cluster where nothing takes time. States are (new prefill, new decode, old prefill, old decode).
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.plan.rollout_world import OLD, Rules, Set, World, applied, observe, running
from tests.plan.test_rollout import settle

from kvserving_operator.plan.rollout import next_step
from kvserving_operator.plan.rollout_types import Settings, Wanted

State = tuple[int, int, int, int]
SIZES = [(prefill, decode) for prefill in range(1, 7) for decode in range(1, 7)]

# "Example 1: Two-Role Rollout", 5 + 2 pods, maxSurge 2, maxUnavailable 1.
EXAMPLE: list[State] = [
    (0, 0, 5, 2),
    (2, 1, 5, 2),
    (2, 1, 4, 2),
    (2, 1, 3, 2),
    (4, 2, 3, 2),
    (4, 2, 2, 1),
    (5, 2, 2, 1),
    (5, 2, 0, 0),
]


def states(start: tuple[int, int], wanted: tuple[int, int], surge: int, unavailable: int) -> list[State]:
    """The numbers that the engines of both sets have after each step that changes them."""
    world, asked = World((running(OLD, *start), Set("new")), (OLD,)), Wanted("new", wanted[1], wanted[0])
    found = [(0, 0, *start)]
    while changes := next_step(observe(world, Rules()), asked, Settings("Paired", surge, unavailable)).changes:
        for change in changes:
            world = applied(world, change, Rules())
        world = settle(world)
        old, new = world.named(OLD), world.named("new")
        state = (new.prefill.wanted, new.decode.wanted, old.prefill.wanted, old.decode.wanted)
        if state != found[-1]:
            found.append(state)
        assert len(found) < 40
    return found


@pytest.mark.parametrize("pairs", range(1, 7))
def test_equal_roles_take_the_same_steps(pairs: int) -> None:
    """Its default is ours: one pair more, none less. New and old change in turn, one pair at a time."""
    documented = [(0, 0, pairs, pairs)]
    for new in range(1, pairs + 1):
        documented += [(new, new, pairs - new + 1, pairs - new + 1), (new, new, pairs - new, pairs - new)]
    assert states((pairs, pairs), (pairs, pairs), 1, 0) == documented


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_its_properties_hold_for_every_size_and_budget(sizes: tuple[int, int]) -> None:
    for surge in range(max(sizes) + 1):
        for unavailable in range(0 if surge else 1, max(sizes) + 1):
            found = states(sizes, sizes, surge, unavailable)
            assert found[-1] == (*sizes, 0, 0)
            for before, after in pairwise(found):
                grown, lowered = after[:2] != before[:2], after[2:] != before[2:]
                assert grown != lowered, "decoupled steps: either new or old changes"
                assert (after[2] == 0) == (after[3] == 0), "coordinated drain: no role of the old set is left alone"
                assert all(after[i] >= before[i] and after[i + 2] <= before[i + 2] for i in (0, 1))
                for role in (0, 1):
                    assert after[role] + after[role + 2] <= sizes[role] + surge, "surge constraint"
            if surge:
                assert found[1][:2] > (0, 0), "scale-up comes first"


def test_its_example_is_done_in_fewer_steps_within_the_same_bounds() -> None:
    ours = states((5, 2), (5, 2), 2, 1)
    assert ours == [(0, 0, 5, 2), (2, 2, 5, 2), (2, 2, 2, 2), (5, 2, 2, 2), (5, 2, 0, 0)]
    assert len(ours) < len(EXAMPLE)
    for found in (ours, EXAMPLE):
        for new_prefill, new_decode, old_prefill, old_decode in found:
            assert 4 <= new_prefill + old_prefill <= 7
            assert 1 <= new_decode + old_decode <= 4


def test_a_smaller_target_lowers_the_old_set_first() -> None:
    """It documents one pod after another down to the room for a surge; here that is one step."""
    assert states((5, 5), (2, 2), 1, 0)[:3] == [(0, 0, 5, 5), (0, 0, 2, 2), (1, 1, 2, 2)]


def test_a_larger_target_leaves_the_old_set_until_the_new_one_is_there() -> None:
    assert states((1, 1), (3, 3), 1, 0) == [(0, 0, 1, 1), (3, 3, 1, 1), (3, 3, 0, 0)]
