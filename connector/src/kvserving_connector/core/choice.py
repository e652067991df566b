"""Which child of a MultiConnector loads a request's KV, and how long a child that says "not yet" is waited for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from numbers import Real
from typing import Any

WEIGHT_FIELD = "load_weight"
DEFER_FIELD = "defer"
PATIENCE_FIELD = "patience_seconds"
REPORT_SECONDS = 30.0


class Deferral(StrEnum):
    """What a child's "not yet" may mean, and so how it is waited for."""

    HARD = "hard"
    """The child may still move blocks of the request: always waited for."""
    SOFT = "soft"
    """Only a lookup is under way: waited for until the patience ends, and only while it may change the result."""
    SOFT_AT_FIRST = "soft-at-first"
    """Soft until the request had blocks, hard from then on: before, there is nothing that the child could move."""
    SELF_BOUNDED = "self-bounded"
    """As soft at first, but the child itself ends its lookups in time, and so is waited for without patience's end."""


@dataclass(frozen=True)
class Child:
    """One child of a MultiConnector. ``label`` is unique among its siblings."""

    label: str
    load_weight: float = 1.0
    deferral: Deferral = Deferral.HARD
    transfers: bool = False
    """Whether it loads what a request's transfer parameters point to, instead of looking in a cache."""


@dataclass(frozen=True)
class Answer:
    """A child's answer: tokens beyond those computed, None for "not yet"; whether they come between steps."""

    tokens: int | None
    asynchronous: bool = False


@dataclass(frozen=True)
class Choice:
    """The result of one question: an answer is waited for, or the child that loads, None when none has tokens."""

    waits: bool = False
    child: int | None = None
    tokens: int = 0
    asynchronous: bool = False
    gave_up: bool = False
    """Whether a child had no answer when the patience ended, so that what it holds is computed."""


@dataclass(frozen=True)
class Patience:
    """How long soft children are waited for: until both bounds have passed, so that a slow step alone ends nothing.

    ``seconds`` since the first "not yet" for the request, ``questions`` asked about it since then. The default is that
    of a tier's loads: a prompt is computed in less, but a shorter one would give up what a busy store is about to send.
    """

    seconds: float = 30.0
    questions: int = 3


def choose(
    children: Sequence[Child],
    answers: Sequence[Answer],
    *,
    limit: Callable[[], int],
    remote_prefill: bool,
    had_blocks: bool,
    patient: Callable[[], bool],
) -> Choice:
    """Return the child with the highest tokens times weight, the first of equals, or that an answer is waited for.

    A transferring child with tokens wins whatever the weights when ``remote_prefill`` is set: the router chose the
    prefill engine, and that engine holds the blocks until they are taken. ``limit`` gives the most tokens that any
    child could offer and ``patient`` whether soft children are still waited for; each is asked only when it matters.
    """
    pending = [index for index, answer in enumerate(answers) if answer.tokens is None]
    if any(_is_hard(children[index], had_blocks) for index in pending):
        return Choice(waits=True)
    best = _best(children, answers, remote_prefill)
    promised = best is not None and remote_prefill and children[best].transfers
    gave_up = False
    if pending and not promised and _may_change(children, answers, best, pending, limit()):
        bounded = any(children[index].deferral is Deferral.SELF_BOUNDED for index in pending)
        if bounded or patient():
            return Choice(waits=True)
        gave_up = True
    if best is None:
        return Choice(gave_up=gave_up)
    tokens = answers[best].tokens
    assert tokens is not None
    return Choice(child=best, tokens=tokens, asynchronous=answers[best].asynchronous, gave_up=gave_up)


def _is_hard(child: Child, had_blocks: bool) -> bool:
    return child.deferral is Deferral.HARD or (had_blocks and child.deferral is not Deferral.SOFT)


def _best(children: Sequence[Child], answers: Sequence[Answer], remote_prefill: bool) -> int | None:
    offers = [index for index, answer in enumerate(answers) if answer.tokens]
    promised = [index for index in offers if children[index].transfers] if remote_prefill else []
    # max() keeps the first of equals, which is the configuration's order.
    return max(promised or offers, key=lambda index: _score(children[index], answers[index].tokens or 0), default=None)


def _score(child: Child, tokens: int) -> float:
    return tokens * child.load_weight


def _may_change(
    children: Sequence[Child], answers: Sequence[Answer], best: int | None, pending: Sequence[int], limit: int
) -> bool:
    if best is None:
        return limit > 0
    score = _score(children[best], answers[best].tokens or 0)
    return any(
        _score(children[index], limit) > score or (_score(children[index], limit) == score and index < best)
        for index in pending
    )


class Waits:
    """Remembers since when each unfinished request is deferred, on a clock that never goes back (seconds)."""

    def __init__(self, patience: Patience, clock: Callable[[], float]) -> None:
        self._patience = patience
        self._clock = clock
        self._open: dict[str, tuple[float, int]] = {}
        self._reported: set[str] = set()

    def __len__(self) -> int:
        """Return the number of requests that are remembered."""
        return len(self._open)

    def note(self, request_id: str) -> None:
        """Count one question about the request that some child answered with "not yet"."""
        since, asked = self._open.get(request_id, (self._clock(), 0))
        self._open[request_id] = (since, asked + 1)

    def patient(self, request_id: str) -> bool:
        """Return whether soft children are still waited for.

        Once the patience has ended it stays ended until ``end``, so that a request which finds no free blocks is not
        held again.
        """
        since, asked = self._open[request_id]
        return asked <= self._patience.questions or self._clock() - since < self._patience.seconds

    def overdue(self, request_id: str) -> bool:
        """Return once per wait whether it has lasted so long that it should be reported."""
        return self._clock() - self._open[request_id][0] >= REPORT_SECONDS and self.first_report(request_id)

    def first_report(self, request_id: str) -> bool:
        """Return whether nothing was reported about the request's wait yet; from now on something was."""
        first = request_id not in self._reported
        self._reported.add(request_id)
        return first

    def end(self, request_id: str) -> None:
        """Forget the request: it was given blocks, or it is finished."""
        self._open.pop(request_id, None)
        self._reported.discard(request_id)


def labels(names: Sequence[str]) -> tuple[str, ...]:
    """Return one label for each name: the name, with ``-1``, ``-2`` … where several children have it."""
    total, seen = Counter(names), Counter[str]()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name}-{seen[name]}" if total[name] > 1 else name)
    return tuple(found)


def load_weight(extra: Mapping[str, Any], where: str) -> float:
    """Return a child's weight, 1.0 when it has none.

    Raises ValueError that begins with ``where``, the child's place in the configuration, unless it is a finite number
    above 0.
    """
    value = extra.get(WEIGHT_FIELD, 1.0)
    if not _is_finite(value) or value <= 0:
        raise ValueError(
            f"{where}.kv_connector_extra_config.{WEIGHT_FIELD}={value!r} must be a finite number above 0: the child "
            "with the most hit tokens times weight loads; leave it out for 1.0"
        )
    return float(value)


def deferral(extra: Mapping[str, Any], where: str, default: Deferral) -> Deferral:
    """Return how a child is waited for; a class that is soft at first does not become softer than that.

    Raises ValueError like ``load_weight`` unless it is left out, ``hard`` or ``soft``.
    """
    value = extra.get(DEFER_FIELD)
    if value is None:
        return default
    if value == Deferral.SOFT.value and default is not Deferral.HARD:
        return Deferral.SOFT_AT_FIRST
    if value not in (Deferral.HARD.value, Deferral.SOFT.value):
        raise ValueError(
            f'{where}.kv_connector_extra_config.{DEFER_FIELD}={value!r} must be "hard" (always wait for this child) or '
            '"soft" (its "not yet" is only a lookup, go on without it after a while); leave it out for the default'
        )
    return Deferral(value)


def check(extra: Mapping[str, Any]) -> None:
    """Check the keys of a connector that may be a child or stand alone. Raises ValueError like ``load_weight``."""
    load_weight(extra, "kv_transfer_config")
    deferral(extra, "kv_transfer_config", Deferral.HARD)


def patience(extra: Mapping[str, Any], where: str) -> Patience:
    """Return the patience with soft children. Raises ValueError like ``load_weight`` unless it is 0 or more seconds."""
    value = extra.get(PATIENCE_FIELD, Patience.seconds)
    if not _is_finite(value) or value < 0:
        raise ValueError(
            f"{where}.{PATIENCE_FIELD}={value!r} must be a number of seconds, 0 or more; leave it out for "
            f"{Patience.seconds}"
        )
    return Patience(seconds=float(value))


def _is_finite(value: object) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
