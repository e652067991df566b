"""What the ranks are asked about L2 before a request's blocks are allocated, and what they answered."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvserving_connector.core.chunk_hashes import HashBook, part_key
from kvserving_connector.core.loads import LoadLedger, Tier
from kvserving_connector.core.planner import GroupKind, HybridOffloadPlanner
from kvserving_connector.core.reports import Quorum, ReadyReport
from kvserving_connector.core.tracker import PrefixTracker
from kvserving_connector.settings import logger
from kvserving_connector.vllm.worker_cache.messages import Probe


@dataclass
class LookUp:
    """What is known of a request before its blocks are allocated. ``ready`` is None until all ranks have answered.

    ``asked_from`` are the tokens that the engine held when they were asked, ``tracked`` those that were tracked.
    """

    request: Any
    local: int = 0
    promised: int = 0
    tier: Tier = Tier.L1
    probe: int | None = None
    asked_from: int = 0
    tracked: int = 0
    ready: int | None = None
    waits_since: float | None = None
    lost: set[bytes] = field(default_factory=set)


class LookUps:
    """The scheduler's side of probes. A rank that answered holds what it has ready until it is told to let go.

    ``patience_s`` are the seconds that a request waits for room on the ranks before it goes without L2.
    """

    def __init__(
        self,
        planner: HybridOffloadPlanner,
        ranks: int,
        tracker: PrefixTracker,
        hashes: HashBook,
        ledger: LoadLedger,
        patience_s: float,
    ) -> None:
        self._planner = planner
        self._groups = range(len(planner.groups))
        self._all_full = all(group.kind is GroupKind.FULL for group in planner.groups)
        self._tracker = tracker
        self._hashes = hashes
        self._ledger = ledger
        self._patience = patience_s
        self._quorum: Quorum[ReadyReport] = Quorum(ranks)
        self._waiting: dict[str, LookUp] = {}
        self._asked: dict[int, LookUp] = {}
        self._numbers: dict[str, int] = {}
        self._last = 0
        self._probes: list[Probe] = []
        self._releases: list[int] = []

    def of(self, request: Any, local: int) -> LookUp:
        """Return the request's look-up, begun where there is none; nothing is promised by it yet."""
        found = self._waiting.setdefault(request.request_id, LookUp(request))
        found.local, found.promised = local, 0
        return found

    def take(self, request_id: str) -> LookUp | None:
        """Return and forget the request's look-up. What ranks hold ready for it they hold until ``release``."""
        return self._waiting.pop(request_id, None)

    def messages(self) -> tuple[list[Probe], list[int]]:
        """Return the probes and the releases that the ranks have not been told yet."""
        told, self._probes, self._releases = (self._probes, self._releases), [], []
        return told

    def ready(self, found: LookUp, keys: Sequence[bytes], prefix: int, new: int) -> int | None:
        """Return the tokens that the ranks have ready, 0 when they are not asked, None while they are awaited.

        ``prefix`` are the tokens that are tracked, ``new`` those that the engine itself lacks.
        """
        request_id = found.request.request_id
        if found.probe is not None and self._outdated(found, keys):
            self.release(request_id)
            found.probe = found.ready = None
        if found.ready is not None:
            return found.ready
        if found.probe is None:
            enough = prefix >= self._planner.limit(found.request.num_tokens)
            if enough or self._ledger.gave_up(request_id) or not self._ledger.may_ask_outer(request_id, new):
                return 0
            if not self._room_for(found):
                now = time.monotonic()
                found.waits_since = now if found.waits_since is None else found.waits_since
                if now - found.waits_since < self._patience:
                    return None
                found.ready = 0
                return 0
            found.asked_from, found.tracked = found.local, prefix
            self._ask(found, keys, found.request.num_tokens)
        if not self._ledger.deferred(request_id):
            return None
        logger.warning("KVServing worker cache: no answer for request %s in time, its prompt is computed", request_id)
        self.release(request_id)
        found.ready = 0
        return 0

    def answered(self, number: int, report: ReadyReport) -> None:
        """Take the answers of some ranks to a probe."""
        found = self._asked.get(number)
        merged = self._quorum.add(number, report) if found is not None else None
        if found is None or merged is None:
            return
        keys = self._hashes.of(found.request.request_id).keys(found.request.block_hashes)
        if found.asked_from < merged.tokens < merged.most and not self._all_full:
            # A rank with a longer prefix may lack the state or the window that the shorter one needs.
            self.release(found.request.request_id)
            self._ask(found, keys, merged.tokens + 1)
            return
        found.ready = merged.tokens
        # The ranks hold these parts for the request, so they are tracked like saved ones.
        for group in self._groups:
            for span in self._planner.needed(group, merged.tokens):
                key = part_key(keys[span], group)
                if span >= self._planner.spans(found.asked_from) and key not in found.lost:
                    self._tracker.add(key, self._planner.blocks_per_part(group))

    def lost(self, keys: set[bytes]) -> None:
        """A rank has lost parts, some of which it may have answered with already."""
        for number, found in self._asked.items():
            if number in self._quorum or found.ready is not None:
                found.lost |= keys

    def release(self, request_id: str) -> None:
        """Let the ranks let go of what they hold ready for the request, if they hold anything."""
        number = self._numbers.pop(request_id, None)
        if number is None:
            return
        del self._asked[number]
        self._quorum.drop(number)
        # One that the ranks have not heard of is not asked: they release before they begin.
        unsent = [probe for probe in self._probes if probe.number == number]
        if unsent:
            self._probes.remove(unsent[0])
        else:
            self._releases.append(number)

    def reset(self, but: Iterable[str]) -> None:
        """Forget all answers, and have the ranks let go of them; ``but`` for these requests, which load already."""
        for request_id in self._numbers.keys() - but:
            self.release(request_id)
        for found in self._waiting.values():
            found.probe = found.ready = None

    def _outdated(self, found: LookUp, keys: Sequence[bytes]) -> bool:
        """Whether the engine has lost what the ranks were not asked for, or a rank what it had ready.

        No rank evicts what is ready, but it may find a part wrong that another request loads.
        """
        asked_from = self._planner.spans(found.asked_from)
        if self._planner.spans(found.local) < asked_from:
            return True
        if not found.lost or not found.ready:
            return False
        return any(
            part_key(keys[span], group) in found.lost
            for group in self._groups
            for span in self._planner.needed(group, found.ready)
            if span >= asked_from
        )

    def _ask(self, found: LookUp, keys: Sequence[bytes], num_tokens: int) -> None:
        """Ask the ranks for a prefix that leaves one of ``num_tokens`` to compute."""
        self._last += 1
        found.probe = self._numbers[found.request.request_id] = self._last
        found.lost = set()
        self._asked[self._last] = found
        self._probes.append(Probe(self._last, tuple(keys), num_tokens, found.asked_from))

    def _room_for(self, found: LookUp) -> bool:
        """Whether the ranks can hold this prompt ready beside those that wait for their blocks already.

        Otherwise the request waits for one of them, as it would for its blocks: what all of them together pin could be
        the whole tier, and nothing would be left to save to.
        """
        span_slots = sum(self._planner.blocks_per_part(group) for group in self._groups)
        tokens = [each.request.num_tokens for each in (*self._asked.values(), found)]
        slots = span_slots * sum(self._planner.spans(self._planner.limit(number)) for number in tokens)
        return len(tokens) == 1 or slots <= self._tracker.capacity // 2
