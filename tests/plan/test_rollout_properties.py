"""What holds for any observation, reachable or not: nothing is raised, nothing goes beyond the budget."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.rollout_explorer import misstep
from tests.plan.rollout_world import Group, Rules, Set, World

from kvserving_operator.plan.rollout import next_step
from kvserving_operator.plan.rollout_progress import gains, reached
from kvserving_operator.plan.rollout_types import (
    Drain,
    Observation,
    Pods,
    Remove,
    RevisionSet,
    Scale,
    Settings,
    Step,
    Switch,
    Verification,
    Wanted,
)

NAMES = ("a", "b", "c")
COUNTS = st.integers(-2, 9)
PODS = st.builds(Pods, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, st.integers(-1, 8))
SETS = st.builds(
    RevisionSet,
    st.sampled_from(NAMES),
    st.integers(-1, 4),
    PODS,
    st.none() | PODS,
    st.none() | PODS,
    st.sampled_from(Verification),
)
OBSERVATIONS = st.builds(
    Observation,
    st.lists(SETS, max_size=4, unique_by=lambda s: s.revision).map(tuple),
    st.lists(st.sampled_from((*NAMES, "gone")), max_size=3).map(tuple),
    st.none() | st.sampled_from(NAMES),
    st.none() | st.integers(-3, 40),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)
WANTED = st.builds(
    Wanted,
    st.sampled_from(NAMES),
    COUNTS,
    st.none() | COUNTS,
    st.none() | st.integers(-1, 14),
    st.integers(-1, 8),
    st.integers(-1, 8),
)
SETTINGS = st.builds(
    Settings,
    st.sampled_from(("Paired", "Recreate")),
    st.integers(-1, 7),
    st.integers(-1, 7),
    st.booleans(),
    st.floats(0, 1e5),
    st.booleans(),
)
MANY = settings(max_examples=300, deadline=None)


def group(pods: Pods) -> Group:
    """The fewest ready pods that the numbers allow."""
    existing = max(0, pods.existing)
    draining = min(max(0, pods.draining), existing)
    ready = min(max(0, pods.ready), existing - draining)
    return Group(max(0, pods.wanted), existing - draining - ready, ready, draining)


def world(observed: Observation) -> World:
    """The observation as the checker of the simulated cluster reads it; of equal names the newest counts."""
    newest: dict[str, RevisionSet] = {}
    for s in sorted(observed.sets, key=lambda s: -s.number):
        newest.setdefault(s.revision, s)
    sets = tuple(
        Set(
            s.revision,
            group(s.prefill or Pods()),
            group(s.decode),
            group(s.router) if s.router else None,
            s.verification,
        )
        for s in newest.values()
    )
    return World(sets, tuple(dict.fromkeys(observed.traffic)), observed.failed)


@MANY
@given(OBSERVATIONS, WANTED, SETTINGS)
def test_any_observation_has_a_step_and_is_left_as_it_was(
    observed: Observation, wanted: Wanted, chosen: Settings
) -> None:
    step = next_step(observed, wanted, chosen)
    assert step == next_step(observed, wanted, chosen)
    assert step.decisions or step.phase.value == "Complete"
    assert gains(reached(observed, wanted.revision), reached(observed, wanted.revision))[1] is False
    for change in step.changes:
        if isinstance(change, (Scale, Drain)):
            pods = next((s.pods(change.role) for s in observed.sets if s.revision == change.revision), None) or Pods()
            assert change.count >= 0
            if sum(s.revision == change.revision for s in observed.sets) < 2:
                assert (change.count > max(0, pods.wanted)) == isinstance(change, Scale)
        elif isinstance(change, Switch):
            assert change.revisions != observed.traffic
            assert set(change.revisions) <= {*NAMES}
        else:
            assert isinstance(change, Remove)


@MANY
@given(OBSERVATIONS, WANTED, SETTINGS)
def test_no_observation_makes_it_go_beyond_the_budget(observed: Observation, wanted: Wanted, chosen: Settings) -> None:
    wanted = replace(wanted, prefill=max(0, wanted.prefill or 0))
    sets = tuple(replace(s, prefill=s.prefill or Pods(), router=s.router or Pods()) for s in observed.sets)
    observed = replace(observed, sets=sets)
    wanted = replace(wanted, router=max(1, wanted.router or 0))
    step = next_step(observed, wanted, chosen)
    pending = any(pods.pending > 0 for s in sets for pods in (s.prefill or Pods(), s.decode))
    short = Rules(devices=0 if observed.free is not None or pending else None)
    problem = misstep(world(observed), step, wanted, chosen, short)
    assert not problem, problem


def mirror(observed: Observation) -> Observation:
    sets = (replace(s, prefill=s.decode, decode=s.prefill or Pods()) for s in observed.sets)
    return replace(observed, sets=tuple(sets))


def unordered(step: Step, *, mirrored: bool) -> set[object]:
    other = {"prefill": "decode", "decode": "prefill", "router": "router"}
    return {
        (type(c), c.revision, other[c.role] if mirrored else c.role, c.count) if isinstance(c, (Scale, Drain)) else c
        for c in step.changes
    }


@MANY
@given(OBSERVATIONS, WANTED, SETTINGS)
def test_the_roles_are_treated_alike(observed: Observation, wanted: Wanted, chosen: Settings) -> None:
    """What lets the exhaustive test visit one of two mirrored worlds. Routers follow decodes, and devices are
    shared out in the order of the roles."""
    sets = tuple(
        replace(s, prefill=replace(s.prefill or Pods(), pending=0), decode=replace(s.decode, pending=0), router=None)
        for s in observed.sets
    )
    observed = replace(observed, sets=sets, free=None)
    wanted = replace(wanted, prefill=max(0, wanted.prefill or 0), router=None)
    exchanged = replace(wanted, prefill=wanted.decode, decode=wanted.prefill or 0)
    there = next_step(observed, wanted, chosen)
    back = next_step(mirror(observed), exchanged, chosen)
    assert unordered(there, mirrored=False) == unordered(back, mirrored=True)
