"""Loads from the tiers of one engine: which are taken, how long each took, and the counts of both.

The scheduler half of the connector reports what happens to a request; nothing here knows vLLM.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from kvserving_connector.core.cost import CostModel, Verdict

# A timeout keeps everybody from L2 for this long, twice as long for the next one, and so on up to the timeout.
FIRST_STALL = 1.0
# Requests that have waited this share of the timeout are given up with one that has waited all of it.
GIVE_UP_SHARE = 0.5
# A request that was asked for again after as many steps has waited all the time; after more, for one step.
STEPS_BETWEEN = 4
# Loads of ended requests that may still be reported as received.
MAX_ENDED = 256

TELL_SECONDS = 5.0


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
    prefills: int = 0
    """Prefills that were measured."""

    @property
    def empty(self) -> bool:
        """Whether nothing was counted but prefills."""
        return not (self.loads or self.skipped or self.measuring or self.timeouts)


@dataclass
class _Asked:
    """What is known of a request between its first question and its end."""

    outer: bool = True
    outer_skipped: int = 0
    stalled: bool = False
    most: int = 0
    deferred: bool = False
    waited: float = 0.0
    unasked: float = 0.0
    asked_at: float = 0.0
    asked_step: int | None = None
    given_up: bool = False
    verdict: Verdict | None = None
    hit: int = 0


@dataclass(frozen=True)
class _Loading:
    tier: Tier
    tokens: int
    started: float
    most: int | None
    within_step: bool


@dataclass(frozen=True)
class _Computing:
    tokens: int
    started: float


class LoadLedger:
    """Decides about loads, request by request, and measures loads and prefills.

    Without an L2, ``loads`` rules L1. With one, ``always`` rules both tiers, and ``auto`` and ``never`` rule L2 while
    L1 is ``auto``. A decision about a request holds until its blocks are allocated, however often the scheduler asks.
    ``clock`` is monotonic, in seconds.

    A request waits for a lookup while the scheduler asks for it again within ``STEPS_BETWEEN`` steps. A longer time in
    which it was not asked for, because there was no room to run it anyway, is no fault of the tier: it does not count
    as its cost, and only as long as one step of it for the timeout.

    After a timeout nobody new goes to L2 for ``FIRST_STALL`` seconds, whatever the policy; that doubles with each
    timeout after it, up to the timeout, and a hit that L2 answers ends it and starts over. Every request that was kept
    from L2 by it counts as skipped.
    """

    def __init__(self, *, loads: Loads, has_l2: bool, timeout_s: float, clock: Callable[[], float]) -> None:
        self.model = CostModel()
        inner = Loads.AUTO if has_l2 and loads is Loads.NEVER else loads
        self._policy = {Tier.L1: inner, Tier.L2: loads if has_l2 else Loads.NEVER}
        self._timeout = timeout_s
        self._clock = clock
        self._asked: dict[str, _Asked] = {}
        self._loading: dict[str, _Loading] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._computing: dict[str, _Computing] = {}
        self._stalled_until = float("-inf")
        self._stall = min(FIRST_STALL, timeout_s)
        self._step = 0
        self._tally = LoadTally()
        self._told = float("-inf")

    # Questions

    def may_ask_outer(self, request_id: str, new: int) -> bool:
        """Whether the lookup of a request with ``new`` tokens to compute may go to L2.

        The tier cannot be asked for the length of its hit without reading it: the typical one of prompts of that size
        is assumed, and the whole prompt before there is any.
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
        stalled = now < self._stalled_until
        # Requests with the same prefix wait for the same read: they need not find out one after the other, and one
        # that was kept from L2 and waits all the same met a read that was under way.
        share = (0.0 if asked.stalled else GIVE_UP_SHARE) if stalled else 1.0
        if asked.waited + asked.unasked < self._timeout * share:
            return False
        if not stalled:
            self._stalled_until = now + self._stall
            self._stall = min(2 * self._stall, self._timeout)
        asked.given_up = True
        self._tally.timeouts += 1
        return True

    def takes(self, request_id: str, hit: int, new: int) -> bool:
        """Whether the ``hit`` tokens that are in L1 now are loaded, of ``new`` tokens to compute."""
        asked = self._asked.setdefault(request_id, _Asked())
        self._wait(asked)
        if asked.verdict is None:
            if asked.outer and asked.deferred:
                self._stalled_until, self._stall = float("-inf"), min(FIRST_STALL, self._timeout)
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

    def allocated(self, request_id: str, tokens: int, from_l2: bool, within_step: bool = False) -> None:
        """Blocks were allocated and ``tokens`` of them are loaded by this connector, 0 for none.

        ``within_step``: the load is part of the step that computes the rest, and ends with the first token.
        """
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return
        if tokens > 0:
            tier = Tier.L2 if from_l2 else Tier.L1
            waited = asked.waited if from_l2 else 0.0
            most = max(asked.most, tokens) if from_l2 else None
            self._loading[request_id] = _Loading(tier, tokens, self._clock() - waited, most, within_step)
        elif asked.verdict is not None and not asked.verdict.load:
            self._skip(Tier.L1, asked.hit)
        if asked.outer_skipped and tokens < asked.outer_skipped:
            self._skip(Tier.L2, asked.outer_skipped - tokens)

    def received(self, request_id: str) -> None:
        """The load of the request has ended."""
        load = self._loading.pop(request_id, None)
        self._ended.pop(request_id, None)
        if load is not None:
            self._loaded(load, self._clock() - load.started)

    def prefill_started(self, request_id: str, tokens: int) -> None:
        """The request is computed from now on, ``tokens`` of its prompt."""
        if tokens > 0:
            self._computing[request_id] = _Computing(tokens, self._clock())

    def prefilling(self) -> tuple[str, ...]:
        """Return the requests whose first token is awaited."""
        return tuple(self._computing)

    def prefill_ended(self, request_id: str) -> None:
        """The request has its first token."""
        prefill, load = self._computing.pop(request_id, None), self._within_step(request_id)
        if prefill is None:
            return
        now = self._clock()
        if load is not None:
            self._loaded(load, max(0.0, now - load.started - self.model.prefill.estimate(prefill.tokens)))
            return
        self.model.observe_prefill(prefill.tokens, now - prefill.started)
        self._tally.prefills += 1

    def preempted(self, request_id: str) -> None:
        """The request lost its blocks: what was measured of it counts for nothing."""
        self._computing.pop(request_id, None)
        self._within_step(request_id)

    def finished(self, request_id: str) -> None:
        """The request has ended; a load of it that is still under way is measured when it ends.

        Of loads that outlive their requests the latest ``MAX_ENDED`` are kept: the end of one may never be reported.
        """
        self._asked.pop(request_id, None)
        self._computing.pop(request_id, None)
        self._within_step(request_id)
        if request_id in self._loading:
            self._ended[request_id] = None
            if len(self._ended) > MAX_ENDED:
                self._loading.pop(self._ended.popitem(last=False)[0], None)

    def drain(self) -> LoadTally | None:
        """Return what was counted since the last call, None for nothing.

        Prefills alone are told every ``TELL_SECONDS`` at most: they come with nearly every step.
        """
        if self._tally.empty and not (self._tally.prefills and self._clock() >= self._told + TELL_SECONDS):
            return None
        self._told = self._clock()
        tally, self._tally = self._tally, LoadTally()
        return tally

    def _within_step(self, request_id: str) -> _Loading | None:
        """Take the load of the request off the list if it is one within a step."""
        load = self._loading.get(request_id)
        return self._loading.pop(request_id) if load is not None and load.within_step else None

    def _loaded(self, load: _Loading, seconds: float) -> None:
        self.model.observe_load(load.tier, load.tokens, seconds, load.most)
        self._tally.loads[load.tier] += 1
        self._tally.tokens[load.tier] += load.tokens
        self._tally.seconds[load.tier] = self._tally.seconds.get(load.tier, 0.0) + seconds

    # Judging

    def _wait(self, asked: _Asked) -> None:
        """Add the time since the last question that had no answer."""
        if asked.asked_step is None:
            return
        seconds, steps = self._clock() - asked.asked_at, self._step - asked.asked_step
        if steps <= STEPS_BETWEEN:
            asked.waited += seconds
        else:
            asked.unasked += seconds / steps
        asked.asked_step = None

    def _outer(self, asked: _Asked, new: int) -> bool:
        asked.most = new - 1
        if self._policy[Tier.L2] is Loads.NEVER or asked.most < 1:
            return False
        asked.stalled = self._clock() < self._stalled_until
        load = not asked.stalled and self._judge(Tier.L2, asked.most, new).load
        asked.outer_skipped = 0 if load else self.model.expected(Tier.L2, asked.most)
        return load

    def _judge(self, tier: Tier, hit: int, new: int) -> Verdict:
        if self._policy[tier] is not Loads.AUTO:
            return Verdict(load=self._policy[tier] is Loads.ALWAYS)
        decide = self.model.decide if tier is Tier.L1 else self.model.decide_unseen
        verdict = decide(tier, min(hit, new), new)
        if verdict.measuring:
            self._tally.measuring[tier] += 1
        return verdict

    def _skip(self, tier: Tier, tokens: int) -> None:
        self._tally.skipped[tier] += 1
        self._tally.skipped_tokens[tier] += tokens
