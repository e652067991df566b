"""Whether an engine may be restarted now: findings, engines and what was restarted before in, one engine at most out.

Pure. A restart costs a role minutes of one engine, so it must not do more harm than the fault: one engine of an object
at a time, none that is the last to serve, with pauses that grow while restarts do not help, and not without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..reasons import Reason
from .findings import Finding


@dataclass(frozen=True)
class Engine:
    """One engine. ``uid`` is another one after a replacement; ``serving``: it is ready and not about to go."""

    pod: str
    uid: str
    role: str
    revision: str
    serving: bool


@dataclass(frozen=True)
class Restart:
    """A restart that was begun at ``at``."""

    at: float
    pod: str
    uid: str
    role: str
    revision: str
    reason: Reason


@dataclass(frozen=True)
class Rate:
    """How often engines may be restarted. Times in seconds.

    After the n-th restart of a role in a row the next one waits ``first`` times 2ⁿ⁻¹, at most ``longest``; after
    ``most`` there is none. Restarts are in a row until ``calm`` has gone by without one. A restart is over when the
    engines of its role and revision all serve again, at the earliest after ``least``, at the latest after ``settle``.
    The same pod is not restarted again within ``same``.
    """

    first: float = 120.0
    longest: float = 3600.0
    most: int = 5
    calm: float = 6 * 3600.0
    least: float = 30.0
    settle: float = 3600.0
    same: float = 600.0

    def pause(self, restarts: int) -> float:
        """Return how long to wait after so many restarts in a row."""
        return 0.0 if restarts == 0 else float(min(self.longest, self.first * 2.0 ** min(restarts - 1, 30)))


RATE = Rate()


@dataclass(frozen=True)
class Decision:
    """What to do: restart ``engine`` for ``finding``, or nothing. ``why``: the reason for nothing, or empty.

    With a finding and no engine, the finding stands and a restart is held back. Findings about an engine that is being
    restarted are no longer of interest.
    """

    finding: Finding | None = None
    engine: Engine | None = None
    why: str = ""


def decide(
    findings: Iterable[Finding],
    engines: Sequence[Engine],
    history: Sequence[Restart],
    now: float,
    rate: Rate = RATE,
) -> Decision:
    """Return which one engine is restarted now. ``history`` are the object's restarts, the oldest first."""
    by_name = {engine.pod: engine for engine in engines}
    going = under_way(engines, history, now, rate)
    held: Decision | None = None
    # Who serves nobody goes first: nothing is lost with it.
    for finding in sorted(findings, key=lambda found: (not found.idle, found.pod)):
        engine = by_name.get(finding.pod)
        if engine is None or not engine.serving or (going is not None and going.uid == engine.uid):
            continue
        why = _against(finding, engine, engines, history, now, rate)
        if not why:
            return Decision(finding, engine)
        held = held or Decision(finding, None, why)
    return held or Decision()


def under_way(engines: Sequence[Engine], history: Sequence[Restart], now: float, rate: Rate = RATE) -> Restart | None:
    """Return the restart that is not over yet."""
    for done in reversed(history):
        age = now - done.at
        same = [engine for engine in engines if (engine.role, engine.revision) == (done.role, done.revision)]
        present = any(engine.uid == done.uid for engine in same)
        whole = all(engine.serving for engine in same)
        if age < rate.least or (age < rate.settle and (present or not whole)):
            return done
    return None


def in_a_row(role: str, history: Sequence[Restart], now: float, rate: Rate = RATE) -> int:
    """Return how many restarts of a role followed each other without calm in between, up to now."""
    count, after = 0, now
    for done in reversed([restart for restart in history if restart.role == role]):
        if after - done.at >= rate.calm:
            break
        count, after = count + 1, done.at
    return count


def _against(
    finding: Finding, engine: Engine, engines: Sequence[Engine], history: Sequence[Restart], now: float, rate: Rate
) -> str:
    if (going := under_way(engines, history, now, rate)) is not None:
        return f"the restart of {going.pod} is not over yet"
    if any(done.uid == engine.uid and now - done.at < rate.same for done in history):
        return f"{engine.pod} was restarted a moment ago"
    mine = [done for done in history if done.role == engine.role]
    count = in_a_row(engine.role, history, now, rate)
    if count >= rate.most:
        return (
            f"{count} restarts of {engine.role} engines in a row have not helped: look into the log of {engine.pod} "
            "and at its node, and delete the pod to try once more"
        )
    if count and now - mine[-1].at < rate.pause(count):
        return f"the last restart of a {engine.role} engine was less than {rate.pause(count):g} s ago"
    same = [one for one in engines if (one.role, one.revision) == (engine.role, engine.revision)]
    others = [one for one in same if one.serving and one.uid != engine.uid]
    if not finding.idle and not others:
        return f"{engine.pod} is the last {engine.role} engine that serves"
    return ""
