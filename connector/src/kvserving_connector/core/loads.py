"""Loads from the tiers of one engine: which are taken, how long each took, and the counts of both.

The scheduler half of the connector reports what happens to a request; nothing here knows vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from kvserving_connector.core.cost import CostModel, Verdict


class Loads(StrEnum):
    """When a tier is loaded from."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Tier(StrEnum):
    """L1 is the host memory of this engine, L2 everything that is read through it."""

    L1 = "l1"
    L2 = "l2"


@dataclass
class LoadTally:
    """Counts since the last drain, by tier."""

    loads: Counter[Tier] = field(default_factory=Counter)
    tokens: Counter[Tier] = field(default_factory=Counter)
    seconds: dict[Tier, float] = field(default_factory=dict)
    measuring: Counter[Tier] = field(default_factory=Counter)
    skipped: Counter[Tier] = field(default_factory=Counter)
    skipped_tokens: Counter[Tier] = field(default_factory=Counter)
    timeouts: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing was counted."""
        return not (self.loads or self.skipped or self.measuring or self.timeouts)


@dataclass
class _Asked:
    """What is known of a request between its first question and its end."""

    outer: bool = True
    outer_skipped: int = 0
    deferred: bool = False
    waited: float = 0.0
    asked_at: float = 0.0
    asked_step: int = -2
    given_up: bool = False
    verdict: Verdict | None = None
    hit: int = 0


@dataclass(frozen=True)
class _Loading:
    tier: Tier
    tokens: int
    started: float


@dataclass(frozen=True)
class _Computing:
    tokens: int
    started: float


class LoadLedger:
    """Decides about loads, request by request, and measures loads and prefills.

    Without an L2, ``loads`` rules L1. With one it rules L2, and L1 is ``auto``. A decision about a request holds until
    its blocks are allocated, however often the scheduler asks. ``clock`` is monotonic, in seconds.

    A request waits for a lookup while the scheduler asks for it in every step. Time in which it was not asked for,
    because there was no room to run it anyway, is no fault of the tier and counts neither as its cost nor for the
    timeout.
    """

    def __init__(self, *, loads: Loads, has_l2: bool, timeout_s: float, clock: Callable[[], float]) -> None:
        self.model = CostModel()
        self._policy = {Tier.L1: Loads.AUTO if has_l2 else loads, Tier.L2: loads if has_l2 else Loads.NEVER}
        self._has_l2 = has_l2
        self._timeout = timeout_s
        self._clock = clock
        self._asked: dict[str, _Asked] = {}
        self._loading: dict[str, _Loading] = {}
        self._computing: dict[str, _Computing] = {}
        self._stalled_until = float("-inf")
        self._step = 0
        self._tally = LoadTally()

    # Questions

    def may_ask_outer(self, request_id: str, new: int) -> bool:
        """Whether the lookup of a request with ``new`` tokens to compute may go to L2.

        The tier cannot be asked for the length of its hit without reading it, so the whole prompt is assumed.
        """
        asked = self._asked.get(request_id)
        if asked is None:
            asked = self._asked[request_id] = _Asked()
            asked.outer = self._outer(asked, new)
        return asked.outer

    def gave_up(self, request_id: str) -> bool:
        """Whether no further lookup is to be made for the request: its tier did not answer in time."""
        asked = self._asked.get(request_id)
        return asked is not None and asked.given_up

    def deferred(self, request_id: str) -> bool:
        """Note that the lookup has no answer yet; return True when the request has waited long enough for one."""
        asked, now = self._asked.setdefault(request_id, _Asked()), self._clock()
        self._wait(asked)
        asked.deferred, asked.asked_at, asked.asked_step = True, now, self._step
        late = asked.waited >= self._timeout
        if not late and now >= self._stalled_until:
            return False
        if late:
            # Requests with the same prefix wait for the same read: they need not find out one after the other.
            self._stalled_until = now + self._timeout
        asked.given_up = True
        self._tally.timeouts += 1
        return True

    def takes(self, request_id: str, hit: int, new: int) -> bool:
        """Whether the ``hit`` tokens that are in L1 now are loaded, of ``new`` tokens to compute."""
        asked = self._asked.setdefault(request_id, _Asked())
        self._wait(asked)
        if asked.verdict is None:
            asked.verdict = self._judge(Tier.L1, hit, new)
        asked.hit = hit
        return asked.verdict.load

    def was_deferred(self, request_id: str) -> bool:
        """Whether the request waited for a lookup."""
        asked = self._asked.get(request_id)
        return asked is not None and asked.deferred

    # Events

    def stepped(self) -> None:
        """The scheduler has made its choice for one step."""
        self._step += 1

    def allocated(self, request_id: str, tokens: int, from_l2: bool) -> None:
        """Blocks were allocated and ``tokens`` of them are loaded by this connector, 0 for none."""
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return
        if tokens > 0:
            tier = Tier.L2 if from_l2 else Tier.L1
            waited = asked.waited if from_l2 else 0.0
            self._loading[request_id] = _Loading(tier, tokens, self._clock() - waited)
        elif asked.verdict is not None and not asked.verdict.load:
            self._skip(Tier.L1, asked.hit)
        if asked.outer_skipped and tokens < asked.outer_skipped:
            self._skip(Tier.L2, asked.outer_skipped - tokens)

    def received(self, request_id: str) -> None:
        """The load of the request has ended."""
        load = self._loading.pop(request_id, None)
        if load is None:
            return
        seconds = self._clock() - load.started
        self.model.observe_load(load.tier, load.tokens, seconds)
        self._tally.loads[load.tier] += 1
        self._tally.tokens[load.tier] += load.tokens
        self._tally.seconds[load.tier] = self._tally.seconds.get(load.tier, 0.0) + seconds

    def prefill_started(self, request_id: str, tokens: int) -> None:
        """The request is computed from now on, ``tokens`` of its prompt."""
        if tokens > 0:
            self._computing[request_id] = _Computing(tokens, self._clock())

    def prefilling(self) -> tuple[str, ...]:
        """Return the requests whose first token is awaited."""
        return tuple(self._computing)

    def prefill_ended(self, request_id: str) -> None:
        """The request has its first token."""
        prefill = self._computing.pop(request_id, None)
        if prefill is not None:
            self.model.observe_prefill(prefill.tokens, self._clock() - prefill.started)

    def preempted(self, request_id: str) -> None:
        """The request lost its blocks: what was measured of it counts for nothing."""
        self._computing.pop(request_id, None)

    def finished(self, request_id: str) -> None:
        """The request has ended; a load of it that is still under way is measured when it ends."""
        self._asked.pop(request_id, None)
        self._computing.pop(request_id, None)

    def drain(self) -> LoadTally | None:
        """Return what was counted since the last call, None for nothing."""
        if self._tally.empty:
            return None
        tally, self._tally = self._tally, LoadTally()
        return tally

    # Judging

    def _wait(self, asked: _Asked) -> None:
        """Add the time since the last question that had no answer, when no step went by without a question."""
        if asked.asked_step >= self._step - 1:
            asked.waited += self._clock() - asked.asked_at
        asked.asked_step = -2

    def _outer(self, asked: _Asked, new: int) -> bool:
        if not self._has_l2 or self._policy[Tier.L2] is Loads.NEVER or self._clock() < self._stalled_until:
            return False
        potential = new - 1
        if potential < 1:
            return False
        load = self._judge(Tier.L2, potential, new).load
        asked.outer_skipped = 0 if load else potential
        return load

    def _judge(self, tier: Tier, hit: int, new: int) -> Verdict:
        if self._policy[tier] is not Loads.AUTO:
            return Verdict(load=self._policy[tier] is Loads.ALWAYS)
        verdict = self.model.decide(tier, min(hit, new), new)
        if verdict.measuring:
            self._tally.measuring[tier] += 1
        return verdict

    def _skip(self, tier: Tier, tokens: int) -> None:
        self._tally.skipped[tier] += 1
        self._tally.skipped_tokens[tier] += tokens
