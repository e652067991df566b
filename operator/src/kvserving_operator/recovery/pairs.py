"""Which engine is at fault where a prefill and a decode engine cannot transfer although both have worked. Pure.

A decode engine keeps what it knows of each prefill engine: descriptors of its memory, a connection, an engine id. A
prefill engine keeps nothing of its peers. So it is decode that may hold on to a peer that has gone, and decode is
restarted; prefill where it works with nobody, and decode works with others or has just been started anew. Two engines
of which neither has ever transferred are no case for a restart but for whoever set them up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ..reasons import Reason
from .findings import Finding

CAUSES = frozenset((Reason.TRANSFER_FAILED, Reason.PEER_STALE))
"""Reasons of a failed verification that a restart may help."""

FAILURES = 3
"""Verifications in a row that must fail."""

LONG_ENOUGH = 90.0
"""Seconds over which they must: an engine that hangs, so that no peer can fetch from it, is found earlier."""

Pair = tuple[str, str]
"""The processes of a prefill and of a decode engine."""


@dataclass(frozen=True)
class Outcome:
    """What verification said of one pair; ``reason`` is ``VERIFIED`` where it proved a transfer."""

    pair: Pair
    reason: Reason


@dataclass(frozen=True)
class Record:
    """The last verifications of one pair: failures in a row, the first and last of them, ``proved``: the last one."""

    failures: int = 0
    since: float = 0.0
    last: float = 0.0
    reason: Reason = Reason.VERIFIED

    @property
    def proved(self) -> bool:
        """Whether the last verification proved a transfer."""
        return self.reason is Reason.VERIFIED

    @property
    def broken(self) -> bool:
        """Whether it fails again and again for a reason that a restart may help."""
        return self.reason in CAUSES and self.failures >= FAILURES and self.last - self.since >= LONG_ENOUGH


@dataclass(frozen=True)
class Records:
    """What is remembered of the pairs of one object, and the processes that have transferred at least once."""

    pairs: Mapping[Pair, Record]
    worked: frozenset[str] = frozenset()


EMPTY = Records({})


def hear(before: Records, outcomes: Iterable[Outcome], at: float) -> Records:
    """Return what is known after one verification at ``at``."""
    pairs, worked = dict(before.pairs), set(before.worked)
    for outcome in outcomes:
        last = pairs.get(outcome.pair, Record())
        if outcome.reason is Reason.VERIFIED:
            pairs[outcome.pair] = Record(last=at)
            worked.update(outcome.pair)
        elif outcome.reason in CAUSES:
            since = last.since if last.failures else at
            pairs[outcome.pair] = Record(last.failures + 1, since, at, outcome.reason)
        else:
            # Another fault hides whether they could transfer.
            pairs[outcome.pair] = replace(last, failures=0, reason=outcome.reason, last=at)
    return Records(pairs, frozenset(worked))


def retain(before: Records, processes: Collection[str]) -> Records:
    """Return what holds for the processes that are still there."""
    pairs = {pair: record for pair, record in before.pairs.items() if all(one in processes for one in pair)}
    return Records(pairs, before.worked & frozenset(processes))


def judge(
    records: Records, prefills: Mapping[str, str], decodes: Mapping[str, str], *, recomputes: bool = False
) -> tuple[Finding, ...]:
    """Return which engine of each broken pair to restart. The mappings name the pod of each process that serves.

    ``recomputes``: a decode engine whose transfers fail serves all the same, by computing.
    """
    found = {}
    for (prefill, decode), record in sorted(records.pairs.items()):
        if not record.broken or not {prefill, decode} & records.worked:
            continue
        if prefill not in prefills or decode not in decodes:
            continue
        fresh = decode not in records.worked
        if not _works(records, prefill) and (fresh or _works(records, decode)):
            idle = all(_broken(records, (prefill, other)) for other in decodes)
            text = f"hands over nothing to {decodes[decode]}, verification after verification"
            found[prefill] = Finding(prefills[prefill], Reason.PEER_STALE, text, idle=idle)
        else:
            # Pairs that verification leaves out may work.
            idle = all(_broken(records, (other, decode)) for other in prefills) and not recomputes
            text = f"cannot fetch from {prefills[prefill]}, verification after verification"
            found[decode] = Finding(decodes[decode], Reason.PEER_STALE, text, idle=idle)
    return tuple(found.values())


def _works(records: Records, process: str) -> bool:
    return any(record.proved for pair, record in records.pairs.items() if process in pair)


def _broken(records: Records, pair: Pair) -> bool:
    return pair in records.pairs and records.pairs[pair].broken
