"""Until when a decode rank may be certain that a handoff's KV still lies where it was.

Prefill gives the blocks of a handoff to other prompts once its lease is over, whether or not they are being read.
Decode prolongs the lease by heartbeats (vLLM's NIXL connector, from 0.22 on: every sixth of the lease, by two thirds of
it), but no answer says that one has arrived, and one that is sent during a read may wait behind the read itself: seen
on two H200 under kvcached, where 4.4 GB took 13 s and a lease of 10 s ended meanwhile. So what was sent before a read
counts, and what is sent during it does not. One that arrives when the lease is over prolongs nothing, so that those
count alone of which each must have arrived before the lease was over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

ARRIVAL_SECONDS = 1.0
"""How long a heartbeat may take, at most, on a connection that carries nothing else."""
PREFIX = "HB:"
"""Begins a heartbeat among the messages of vLLM's NIXL connector; request ids follow, with commas between them."""


def usable_seconds(lease: int) -> int:
    """How long a handoff may be taken, of a lease of so many seconds.

    Decode prolongs the lease by heartbeats, the first of which comes up to a sixth of the lease after it took the
    handoff (vLLM's NIXL connector); until then the lease must hold.
    """
    return max(1, lease - lease // 6 - 1)


@dataclass
class _Heartbeat:
    sent: float
    requests: frozenset[str]
    behind: set[Hashable]
    """Reads that it may wait for: they were under way when it was sent, and have not ended."""


@dataclass(frozen=True)
class _Chain:
    """The heartbeats of one request that have arrived."""

    first: float
    """Until when the first had arrived."""
    sent: float
    """When the last was sent."""
    gap: float = 0.0
    """The longest time from the sending of one until the next had arrived."""


@dataclass
class _Peer:
    reads: set[Hashable] = field(default_factory=set)
    waiting: deque[_Heartbeat] = field(default_factory=deque)
    chains: dict[str, _Chain] = field(default_factory=dict)

    def arrived(self, heartbeat: _Heartbeat, now: float) -> None:
        """Take a heartbeat that waits for nothing any more; those that were sent earlier have been taken."""
        by, chains = now + ARRIVAL_SECONDS, {}
        for request in heartbeat.requests:
            before = self.chains.get(request)
            if before is None:
                chains[request] = _Chain(by, heartbeat.sent)
            else:
                chains[request] = _Chain(before.first, heartbeat.sent, max(before.gap, by - before.sent))
        self.chains = chains


class Leases:
    """Heartbeats and reads of one rank. Moments are seconds of one clock of the caller's that never goes back."""

    def __init__(self, lease_seconds: int) -> None:
        self._lease_seconds = lease_seconds
        self._peers: dict[str, _Peer] = {}

    def sent(self, peer: str, message: bytes, now: float) -> None:
        """Take a message that was sent to a peer; all but heartbeats are passed over."""
        text = message.decode(errors="replace")
        if not text.startswith(PREFIX):
            return
        known = self._peers.setdefault(peer, _Peer())
        heartbeat = _Heartbeat(now, frozenset(text.removeprefix(PREFIX).split(",")), set(known.reads))
        if not heartbeat.behind:
            known.arrived(heartbeat, now)
            return
        known.waiting.append(heartbeat)
        # One that has waited for so long prolongs nothing, and a read from a peer that is dead may go on for ever.
        while known.waiting[0].sent < now - self._lease_seconds:
            known.waiting.popleft()

    def began(self, read: Hashable, peers: Iterable[str]) -> None:
        """Take a read that begins; until it has ended, heartbeats to its peers may wait for it."""
        for peer in peers:
            self._peers.setdefault(peer, _Peer()).reads.add(read)

    def ended(self, read: Hashable, peers: Iterable[str], now: float) -> None:
        """Take a read that has ended."""
        for known in [self._peers[peer] for peer in peers if peer in self._peers]:
            known.reads.discard(read)
            for heartbeat in known.waiting:
                heartbeat.behind.discard(read)
            while known.waiting and not known.waiting[0].behind:
                known.arrived(known.waiting.popleft(), now)

    def forget(self, peer: str) -> None:
        """Forget a peer that is gone."""
        self._peers.pop(peer, None)

    def certain_until(
        self, remote_request_id: str, peers: Iterable[str], taken_until: float, lease_seconds: int
    ) -> float:
        """Return the last moment at which what is read of a handoff from all ``peers`` is certain to be its own.

        ``taken_until`` is the moment until which prefill let it be taken, ``lease_seconds`` prefill's lease.
        """
        over = taken_until + lease_seconds - usable_seconds(lease_seconds)
        prolonged = lease_seconds * 2 // 3
        ends = []
        for peer in peers:
            chain = self._peers.get(peer, _Peer()).chains.get(remote_request_id)
            end = taken_until
            if chain is not None and chain.first <= over and chain.gap <= prolonged:
                end = max(end, chain.sent + prolonged - ARRIVAL_SECONDS)
            ends.append(end)
        return min(ends, default=taken_until)
