"""One rank's side of L2: look-ups, loads and stores between a store and the rank's own slots of host memory.

Whatever the store does ends in a miss or a skipped store and a counter, never in an exception. No call waits for it,
besides ``drain`` and ``close``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from kvserving_connector.store import lookups
from kvserving_connector.store.announcement import Announcement
from kvserving_connector.store.client import Reason, StoreClient
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.gate import Gate
from kvserving_connector.store.lookups import PROBE_SECONDS, Lookups
from kvserving_connector.store.namespace import Namespace
from kvserving_connector.store.tally import Event, Tally
from kvserving_connector.store.transfers import Finished, Item, Slots, Transfers


@dataclass(frozen=True)
class _LookUp:
    ticket: Hashable
    keys: Sequence[bytes]
    asked: float
    places: Sequence[int]
    """Where the keys stand among those that were to be looked up."""
    total: int


class RankStore:
    """A store as one rank uses it. For one thread; the store is spoken to in others."""

    def __init__(
        self,
        client: StoreClient,
        slots: Slots,
        tally: Tally,
        *,
        namespace: Callable[[], Namespace],
        load_timeout_s: float,
        max_inflight: int,
        probe_seconds: float = PROBE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the client, which ``close`` closes, and the slots: one row of bytes each, all of one length.

        ``namespace``: everything that the rank's objects depend on, its rank among it; asked for when the store is
        first used. ``load_timeout_s``: seconds after which a load is a miss (stores likewise). ``max_inflight``: slots
        that may be loading; beyond it look-ups are misses. ``probe_seconds``: the same for a look-up. ``clock`` gives
        instants of ``time.monotonic``. Raises ValueError naming the argument for a wrong value.
        """
        if not load_timeout_s > 0:
            raise ValueError(f"load_timeout_s: {load_timeout_s} must be a number of seconds above 0, such as 30")
        if max_inflight < 1:
            raise ValueError(f"max_inflight: {max_inflight} must be at least 1 slot")
        self._client = client
        self._tally = tally
        self._namespace = namespace
        self._digest = b""
        self._timeout = load_timeout_s
        self._max_loads = max_inflight
        # Slots of open stores are pinned in host memory, where loads need room as well.
        self._max_stores = max(1, len(slots) // 2)
        self._probe_seconds = probe_seconds
        self._clock = clock
        self._gate = Gate(load_timeout_s, clock=clock)
        # By number, not by ticket: a ticket may be used again while the answer to its first look-up is under way.
        self._open: dict[int, _LookUp] = {}
        self._numbers: dict[Hashable, int] = {}
        self._next = 0
        self._found: list[tuple[Hashable, tuple[bool, ...]]] = []
        announcement = Announcement(client, namespace)
        self._transfers = Transfers(client, slots, tally, before_store=announcement.tell, clock=clock)
        self._lookups = Lookups(client, before=announcement.tell, seconds=probe_seconds, clock=clock)

    def pending(self, *, load: bool) -> int:
        """Return the number of slots of open loads, or of open stores."""
        return self._transfers.pending(load=load)

    def look_up(self, ticket: Hashable, keys: Sequence[bytes]) -> None:
        """Ask which of the objects the store has; ``found`` gives the answer.

        An object that the store failed at a short while ago counts as absent, and so do all while the store is not
        asked. Raises ValueError for a ticket whose look-up is open.
        """
        if ticket in self._numbers:
            raise ValueError(f"ticket: {ticket!r} has a look-up that is open; wait for found() or forget() it")
        now = self._clock()
        places = self._open_for(keys, now)
        self._next += 1
        self._numbers[ticket] = self._next
        if places:
            asked = [keys[place] for place in places]
            self._open[self._next] = _LookUp(ticket, asked, now, places, len(keys))
            self._lookups.submit(self._next, [object_name(self._prefix(), key) for key in asked])
        else:
            self._found.append((ticket, (False,) * len(keys)))

    def found(self) -> list[tuple[Hashable, tuple[bool, ...]]]:
        """Return the look-ups that ended since the last call, each with one answer per key, in the order asked.

        One without an answer after ``probe_seconds`` counts as absent; its late answer is ignored.
        """
        now = self._clock()
        for answer in self._lookups.answers():
            if answer.silent or answer.answered:
                self._gate.looked_up(answer.asked_at, now, silent=answer.silent)
            look_up = self._open.get(answer.ticket)
            if look_up is not None and len(answer.found) > 0:
                lookups.count(self._tally, answer.found)
                self._end(answer.ticket, [each is True for each in answer.found])
        for number in [each for each, look_up in self._open.items() if now - look_up.asked >= self._probe_seconds]:
            look_up = self._open[number]
            self._tally.count(Event.TIMEOUT, "lookup")
            self._tally.count(Event.MISS, Reason.TIMEOUT, len(look_up.keys))
            self._gate.given_up(look_up.keys, look_up.asked, now)
            self._end(number, [])
        found, self._found = self._found, []
        for ticket, _ in found:
            del self._numbers[ticket]
        return found

    def forget(self, ticket: Hashable) -> None:
        """Drop a look-up that nobody waits for any more: ``found`` does not give it. Unknown tickets do no harm."""
        number = self._numbers.pop(ticket, None)
        if number is not None and self._open.pop(number, None) is None:
            self._found = [each for each in self._found if each[0] != ticket]

    def load(self, job: int, items: Sequence[Item]) -> None:
        """Start to read the objects into their slots. ``job``: a number that no open load has."""
        self._transfers.submit(job, items, self._prefix(), self._clock() + self._timeout, load=True)

    def store(self, job: int, items: Sequence[Item]) -> bool:
        """Start to write the slots as objects. ``job``: a number that no open store has.

        Returns False, and nothing is written, when open stores would hold more than half of all slots.
        """
        if self._transfers.pending(load=False) + len(items) > self._max_stores:
            self._tally.count(Event.SKIP, Reason.BUSY, len(items))
            return False
        self._transfers.submit(job, items, self._prefix(), self._clock() + self._timeout, load=False)
        return True

    def finished(self) -> list[Finished]:
        """Return the loads and stores that ended since the last call; nothing touches their slots any more."""
        finished = self._transfers.finished()
        for each in finished:
            self._gate.ended(each, self._clock())
        return finished

    def drain(self) -> None:
        """Wait until all loads and stores have ended, at the latest at their deadlines."""
        self._transfers.drain()

    def close(self) -> None:
        """Give up what is open and release threads and connections; afterwards nothing touches the slots."""
        self._transfers.close()
        self._client.close()
        self._lookups.close()

    def _prefix(self) -> bytes:
        """Return the digest of the namespace, known from the first use on: vLLM settles some facts after start-up."""
        if not self._digest:
            self._digest = self._namespace().digest()
        return self._digest

    def _open_for(self, keys: Sequence[bytes], now: float) -> list[int]:
        """Return the places of the keys that the store is asked for, and count the others as misses."""
        reason, places = Reason.REMEMBERED, list[int]()
        if self._gate.paused(now):
            reason = Reason.PAUSED
        elif self._transfers.pending(load=True) >= self._max_loads:
            reason = Reason.BUSY
        else:
            places = [place for place, key in enumerate(keys) if not self._gate.remembers(key)]
        if len(places) < len(keys):
            self._tally.count(Event.MISS, reason, len(keys) - len(places))
        return places

    def _end(self, number: int, answers: Sequence[bool]) -> None:
        look_up = self._open.pop(number)
        there = {place for place, answer in zip(look_up.places, answers, strict=False) if answer}
        self._found.append((look_up.ticket, tuple(place in there for place in range(look_up.total))))
