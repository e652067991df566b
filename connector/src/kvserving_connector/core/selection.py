"""What a MultiConnector chose, counted by child: questions, hits, tokens, misses and loads under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvserving_connector.core.choice import Answer, Child, Choice

COUNTS = ("queries", "hits", "hit_tokens", "misses")
PENDING = "pending_loads"


@dataclass(frozen=True)
class _Decision:
    answers: tuple[Answer, ...]
    choice: Choice


class Selection:
    """Counts by child what came of the questions about requests.

    A question counts when the request is given blocks, not each time it is asked: a request that waits for blocks or
    for an answer is asked about in every step. ``queries`` are the requests a child was asked about, ``hits`` those it
    was chosen for and ``hit_tokens`` the tokens it loads for them, ``misses`` those it had no tokens for, or no answer
    in time. A child that had tokens and lost counts the query alone.
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self._labels = tuple(child.label for child in children)
        self._decisions: dict[str, _Decision] = {}
        self._loading: dict[str, int] = {}
        self._had_blocks: set[str] = set()
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in COUNTS}
        self._changed = False

    @property
    def remembered(self) -> int:
        """Number of requests about which anything is remembered."""
        return len(self._decisions.keys() | self._loading.keys() | self._had_blocks)

    def had_blocks(self, request_id: str) -> bool:
        """Whether the request was given blocks before."""
        return request_id in self._had_blocks

    def decided(self, request_id: str, answers: Sequence[Answer], choice: Choice) -> None:
        """Note what one question led to; an earlier note about the request is replaced, a wait removes it."""
        if choice.waits:
            self._decisions.pop(request_id, None)
        else:
            self._decisions[request_id] = _Decision(tuple(answers), choice)

    def allocated(self, request_id: str, external_tokens: int) -> None:
        """Note that the request was given blocks and ``external_tokens`` will be loaded into them.

        vLLM says this a second time, with 0 tokens, when an asynchronous load has ended; only the first counts.
        """
        self._had_blocks.add(request_id)
        decision = self._decisions.pop(request_id, None)
        if decision is None:
            return
        self._changed = True
        chosen = decision.choice.child
        for index, (label, answer) in enumerate(zip(self._labels, decision.answers, strict=True)):
            self._counts["queries"][label] += 1
            if index == chosen and external_tokens:
                self._counts["hits"][label] += 1
                self._counts["hit_tokens"][label] += external_tokens
            elif not answer.tokens:
                self._counts["misses"][label] += 1
        if chosen is not None and external_tokens and decision.choice.asynchronous:
            self._loading[request_id] = chosen

    def loaded(self, request_ids: Iterable[str]) -> None:
        """Note that the loads of these requests have ended, well or not."""
        for request_id in request_ids:
            self._changed |= self._loading.pop(request_id, None) is not None

    def finished(self, request_id: str) -> None:
        """Forget the request."""
        self._decisions.pop(request_id, None)
        self._had_blocks.discard(request_id)
        self.loaded((request_id,))

    def drain(self) -> dict[str, dict[str, int]] | None:
        """Return the counts since the last call and the loads under way now, by name and label; None without news."""
        if not self._changed:
            return None
        pending = Counter(self._labels[index] for index in self._loading.values())
        found = {name: dict(counts) for name, counts in self._counts.items()}
        found[PENDING] = {label: pending[label] for label in self._labels}
        self._counts = {name: Counter() for name in COUNTS}
        self._changed = False
        return found
