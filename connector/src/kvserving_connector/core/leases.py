"""Until when a decode rank may be certain that a handoff's KV still lies where it was.

Prefill gives the blocks of a handoff to other prompts once its lease is over, whether or not they are being read.
Decode prolongs the lease by heartbeats (vLLM's NIXL connector, from 0.22 on: every sixth of the lease, by two thirds of
it), but no answer says that one has arrived, and one that is sent during a read may wait behind the read itself: seen
on two H200 under kvcached, where 4.4 GB took 13 s and a lease of 10 s ended meanwhile. So what was sent before a read
counts, and what is sent during it does not.
"""

from __future__ import annotations

from collections.abc import Iterable

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


class Leases:
    """The heartbeats that one rank has sent. Moments are seconds of one clock of the caller's that never goes back."""

    def __init__(self, lease_seconds: int) -> None:
        self._prolonged = lease_seconds * 2 // 3
        self._sent: dict[str, tuple[float, frozenset[str]]] = {}

    def sent(self, peer: str, message: bytes, now: float) -> None:
        """Take a message that was sent to a peer; all but heartbeats are passed over."""
        text = message.decode(errors="replace")
        if text.startswith(PREFIX):
            self._sent[peer] = (now, frozenset(text.removeprefix(PREFIX).split(",")))

    def forget(self, peer: str) -> None:
        """Forget a peer that is gone."""
        self._sent.pop(peer, None)

    def certain_until(self, remote_request_id: str, peers: Iterable[str], taken_until: float | None) -> float | None:
        """Return the last moment at which what is read of a handoff from all ``peers`` is certain to be its own.

        ``taken_until`` is the moment until which prefill let it be taken. None when nothing is known of a lease.
        """
        ends = []
        for peer in peers:
            moment, requests = self._sent.get(peer, (0.0, frozenset()))
            known = [moment + self._prolonged - ARRIVAL_SECONDS] if remote_request_id in requests else []
            known += [taken_until] if taken_until is not None else []
            if not known:
                return None
            ends.append(max(known))
        return min(ends, default=None)
