"""Which engine pods of a settled object served and went, and neither the spec nor the operator asked for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from . import sets
from .facts import Facts, workload

_ROLES = ("prefill", "decode")


@dataclass
class _Role:
    """Pods by UID: those that have served and are there, and those that have served and went."""

    revision: str
    wanted: int
    served: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


class Losses:
    """Remembers the pods of every object that serve, by looking at each reconciliation; a restart forgets."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, _Role]] = {}

    def see(self, facts: Facts, replaced: Collection[str] = ()) -> Mapping[str, tuple[str, ...]]:
        """Return by role the names of pods that served and went, until as many serve as are wanted.

        Where revisions are exchanged, or another number of engines is asked for, pods go because they should.
        ``replaced`` are the UIDs of those that the operator itself deletes.
        """
        view, revision = facts.view, facts.revision
        settled = facts.rollout is not None and not facts.rollout.visible and not facts.suspended
        known = self._known.setdefault(view.serving.uid, {})
        members = [pod for pod in sets.members(view) if pod.revision == revision and not pod.deleting]
        for role in _ROLES:
            child = workload(facts, role)
            wanted = facts.wanted(role, child.workload.replicas if child and child.workload else 0)
            there = {pod.uid: pod.name for pod in members if pod.role == role}
            serving = {pod.uid: pod.name for pod in members if pod.role == role and pod.serving}
            state = known.get(role)
            if state is None or not settled or (state.revision, state.wanted) != (revision, wanted):
                known[role] = state = _Role(revision, wanted, dict(serving))
            accounted = {*there, *replaced}
            state.lost |= {uid: name for uid, name in state.served.items() if uid not in accounted}
            state.served = {uid: name for uid, name in state.served.items() if uid in there} | serving
            if len(serving) >= state.wanted:
                state.lost = {}
        return {role: tuple(state.lost.values()) for role, state in known.items() if state.lost}

    def forget(self, uid: str) -> None:
        """Drop everything about one object."""
        self._known.pop(uid, None)
