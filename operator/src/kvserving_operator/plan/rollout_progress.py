"""What a rollout has reached, so that only what it gains counts as progress. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .rollout_types import ROLES, Observation, Pods, Verification

Reached = Mapping[tuple[str, ...], int]
"""By what is measured, how far it is; more is better, and what is not there counts as 0."""


def reached(observed: Observation, goal: str) -> Reached:
    """How far the rollout to ``goal`` is: pods, proof and traffic of the goal, and how little is left of the others."""
    found: dict[tuple[str, ...], int] = {}
    for s in observed.sets:
        for role in ROLES:
            pods = s.pods(role) or Pods()
            if s.revision == goal:
                found["wanted", role] = pods.wanted
                found["placed", role] = pods.existing - pods.draining - pods.pending
                found["ready", role] = pods.ready
            else:
                found["left", s.revision, role] = -max(pods.wanted, pods.existing)
                found["told", s.revision, role] = -pods.wanted
        if s.revision == goal:
            found["proven",] = int(s.verification is Verification.VERIFIED)
    for revision in observed.traffic:
        found["traffic", revision] = 1 if revision == goal else -1
    return found


def gains(best: Reached, now: Reached) -> tuple[Reached, bool]:
    """The best of both, and whether ``now`` is better than ``best`` in anything.

    What is lost and comes back is no gain: neither a pod that flaps nor a number that goes up and down.
    """
    merged = {what: max(best.get(what, now.get(what, 0)), now.get(what, 0)) for what in {**best, **now}}
    return merged, any(count > best.get(what, min(count, 0)) for what, count in merged.items())
