"""How long a rollout has been without progress, counted while it could have made any."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.rollout_progress import Reached, gains

LOOK = 300.0
"""Seconds after which a rollout that waits is looked at again, at the latest."""
_LONGEST = 2 * LOOK


@dataclass
class RolloutClock:
    """The time without progress of one object's rollout, on the wall clock.

    Between two looks no more counts than an operator that runs leaves between them: not the time of a process that
    stood still, and no jump of the clock. Nothing counts while the rollout rests, paused or with no engines asked for.
    """

    progressed_at: float
    looked: float
    running: bool = False
    rested: float = 0.0
    best: Reached | None = None

    def look(self, now: float) -> None:
        """Count the time since the last look."""
        passed, self.looked = now - self.looked, now
        if self.running:
            self.progressed_at += passed - min(max(passed, 0.0), _LONGEST)
        else:
            self.rested += passed

    def note(self, seen: Reached) -> None:
        """Take note of how far it is at this look."""
        if self.best is None:
            self.best = seen
        self.best, gained = gains(self.best, seen)
        if gained:
            self.progressed_at, self.rested = self.looked, 0.0

    def restart(self) -> None:
        """Begin anew: something else is asked for."""
        self.progressed_at, self.rested, self.running, self.best = self.looked, 0.0, False, None

    @property
    def since(self) -> float:
        """When the time without progress would have begun, had all of it counted."""
        return self.progressed_at + self.rested

    def run(self, running: bool) -> None:
        """Say whether time counts from this look on."""
        if running:
            self.progressed_at, self.rested = self.since, 0.0
        self.running = running
