"""Whether an engine stands still although it has work: readings of its metrics in, a finding out. Pure.

vLLM's ``/health`` answers 200 as long as the engine's process lives, whatever its scheduler does. Its gauges tell of
the last step that ended. Four states are told apart, each with its own time (``Limits``), after which nothing but a
fault explains that nothing moved:

- *untaken*: completions wait for the first part of their answer, while the engine says that it has no request at all.
  The step that took them in never ended. A prompt is tokenised in much less time.
- *queued*: requests wait, none runs, no token comes, although no KV block is in use and no request waits for something
  else than room. A scheduler that works would take one in.
- *parked*: requests wait, none runs, no token comes, but blocks are in use or requests wait for their KV. A large
  transfer over a slow network looks like this, so the time is longer than any should take. A prefill engine whose
  blocks are in use while none of its requests waits for KV is never judged: decode engines that are busy have not
  fetched yet what it computed, which may go on for as long as the longest answer.
- *running*: requests run, and nothing at all has moved: no counter, and no gauge, which most chunks of a prompt move,
  since they take blocks. What must be waited for is the longest prompt, since a model with a sliding window or
  recurrent state takes no more blocks after a while: ``prompt_tokens`` at the pace at which this engine has computed
  prompts so far. Where that is not known, a fixed time holds: a decode engine that gets its KV from others computes
  none.

An engine without work, without statistics, or put to sleep is never judged, and none by few readings or over a gap
between them. Whoever calls leaves out engines that are not ready, and begins anew with each process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from ..reasons import Reason
from ..verify.activity import Activity, Core
from .findings import Finding

_FEW_TOKENS = 16
"""Computed tokens per prompt below which an engine gets its KV from others, and its pace says nothing."""


@dataclass(frozen=True)
class Limits:
    """Times in seconds after which a state is a fault, and what else is needed for a finding.

    *running* has the time of ``prompt_tokens`` at the engine's own pace, at least ``running``; ``unpaced`` where no
    pace is known, ``first`` before the first prompt, for which kernels may have to be compiled. ``gap``: readings that
    are further apart begin anew.
    """

    untaken: float = 60.0
    queued: float = 60.0
    parked: float = 300.0
    running: float = 60.0
    unpaced: float = 120.0
    first: float = 300.0
    prompt_tokens: int = 2 * 131072
    readings: int = 4
    gap: float = 45.0

    def prompt(self, core: Core) -> float:
        """Return how long this engine may take for a prompt."""
        if not core.prefills:
            return self.first
        if core.computed < _FEW_TOKENS * core.prefills:
            return self.unpaced
        return max(self.running, self.prompt_tokens * core.prefill_seconds / core.computed)


LIMITS = Limits()


@dataclass(frozen=True)
class Spell:
    """A time in which nothing moved: from the reading at ``since`` to that at ``last``."""

    state: str
    trace: tuple[float | None, ...]
    limit: float
    sentence: str
    since: float
    last: float
    readings: int = 1

    def over(self, limits: Limits) -> bool:
        """Whether it has lasted for too long."""
        return self.readings >= limits.readings and self.last - self.since >= self.limit


@dataclass(frozen=True)
class Watched:
    """What is remembered of one engine's process: when it was read last, and the spells that go on, by core."""

    at: float = -inf
    spells: Mapping[str, Spell] = field(default_factory=dict)


def observe(before: Watched, at: float, seen: Activity, *, prefill: bool, limits: Limits = LIMITS) -> Watched:
    """Return what is known after the reading ``seen`` at ``at``; one that is not newer than the last changes nothing.

    ``prefill``: decode engines fetch from this one.
    """
    if at <= before.at:
        return before
    now = {index: _spell(core, at, limits, prefill=prefill) for index, core in seen.cores.items()}
    idle = all(not core.running and not core.waiting and not core.asleep for core in seen.cores.values())
    if seen.unanswered and seen.cores and idle:
        trace = tuple(value for _, core in sorted(seen.cores.items()) for value in core.trace)
        text = f"has taken in none of the requests sent to it for {limits.untaken:g} s"
        now[""] = Spell("untaken", trace, limits.untaken, text, at, at)
    spells = {
        index: _continued(before.spells.get(index), spell, limits) for index, spell in now.items() if spell is not None
    }
    return Watched(at, spells)


def judge(pod: str, watched: Watched, limits: Limits = LIMITS) -> Finding | None:
    """Return that the engine hangs, or ``None``."""
    over = [spell for _, spell in sorted(watched.spells.items()) if spell.over(limits)]
    return Finding(pod, Reason.ENGINE_HUNG, over[0].sentence, idle=True) if over else None


def _spell(core: Core, at: float, limits: Limits, *, prefill: bool) -> Spell | None:
    """Return the spell that would begin with this reading; ``None`` where nothing can be wrong."""
    if core.asleep:
        return None
    if core.running:
        limit = limits.prompt(core)
        text = f"has requests running, of which none has moved for {limit:.0f} s"
        return Spell("running", core.trace, limit, text, at, at)
    if not core.waiting:
        return None
    free = not core.usage and core.deferred == 0
    if core.usage and prefill and not core.deferred:
        return None
    limit = limits.queued if free else limits.parked
    text = f"has requests waiting, none running, and computed nothing for {limit:g} s"
    return Spell("waiting", core.done, limit, text, at, at)


def _continued(before: Spell | None, now: Spell, limits: Limits) -> Spell:
    if before is None or (before.state, before.trace) != (now.state, now.trace) or now.last - before.last > limits.gap:
        return now
    longer = before if before.limit > now.limit else now
    return Spell(now.state, now.trace, longer.limit, longer.sentence, before.since, now.last, before.readings + 1)
