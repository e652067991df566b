"""What the fault proxy does to which requests: matches, faults, and rules that join them.

    Rule(Match(verbs={"create"}, resource="deployments", nth=2), Status(500))
    Rule(Match.writes(nth=3), Call(lambda request: operator.kill()))
    Rule(EventMatch(resource="pods", types={"DELETED"}, nth=1), DropEvent())

Faults on requests and faults on watch events are two families: the first act when a request comes in (a watch's
opening included), the second on each event of every watch that is open, also when the rule came after it.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from e2e.controlplane.request_info import RequestInfo

Json = dict[str, Any]


@dataclass(frozen=True)
class Occurrence:
    """Which of the requests or events that fit are hit: all of them, unless limited.

    ``nth``: only these, counted from 1 (a number or a set). ``times``: at most so many hits.
    ``probability``: each with this chance, from a generator seeded with ``seed``.
    """

    nth: int | Set[int] | None = None
    times: int | None = None
    probability: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Match(Occurrence):
    """Requests that fit every given field. ``name`` and ``namespace`` are regular expressions over the whole value.

    ``resource`` is a plural with its subresource (``deployments``, ``pods/status``); ``where`` is one more question
    to the request and its decoded body.
    """

    verbs: Set[str] | None = None
    resource: str | None = None
    group: str | None = None
    namespace: str | None = None
    name: str | None = None
    user_agent: str | None = None
    only_writes: bool = False
    where: Callable[[RequestInfo, Any], bool] | None = None

    @classmethod
    def writes(cls, **fields: Any) -> Match:
        """Everything that changes stored state (dry runs, reviews and leases of leader election left out)."""
        return cls(only_writes=True, **fields)

    def fits(self, info: RequestInfo, body: Any) -> bool:
        """Whether the request fits, occurrence aside."""
        return (
            (self.verbs is None or info.verb in self.verbs)
            and (self.resource is None or info.full_resource == self.resource)
            and (self.group is None or info.group == self.group)
            and _fits(self.namespace, info.namespace)
            and _fits(self.name, info.name)
            and (self.user_agent is None or re.search(self.user_agent, info.user_agent) is not None)
            and (not self.only_writes or (info.is_write and info.resource != "leases"))
            and (self.where is None or self.where(info, body))
        )


@dataclass(frozen=True)
class EventMatch(Occurrence):
    """Events of open watches: ``types`` are ADDED, MODIFIED, DELETED, BOOKMARK, ERROR (bookmarks only when named)."""

    resource: str | None = None
    types: Set[str] | None = None
    name: str | None = None
    namespace: str | None = None

    def fits(self, info: RequestInfo, event: Json) -> bool:
        """Whether an event of the watch ``info`` fits, occurrence aside."""
        metadata = event.get("object", {}).get("metadata", {})
        kind = event.get("type")
        return (
            (kind in self.types if self.types is not None else kind != "BOOKMARK")
            and (self.resource is None or info.full_resource == self.resource)
            and _fits(self.name, metadata.get("name", ""))
            and _fits(self.namespace, metadata.get("namespace", ""))
        )


Forward = Literal["before", "after"]
"""Whether a fault acts before the apiserver sees the request, or after it has acted on it (the answer is lost).

Watches have no "after": their answer is a stream, for which the faults on events are made."""


@dataclass(frozen=True)
class Cut:
    """The connection is cut without an answer; ``after``: the write took effect all the same."""

    when: Forward = "before"


@dataclass(frozen=True)
class Delay:
    """The request, or its answer, is held for ``seconds``."""

    seconds: float
    when: Forward = "before"


@dataclass(frozen=True)
class Duplicate:
    """The request reaches the apiserver twice; the client gets the second answer."""


@dataclass(frozen=True)
class Status:
    """The client gets this status in place of the answer; ``after``: the request took effect all the same."""

    code: int
    retry_after: int | None = None
    reason: str = ""
    message: str = "made by the fault proxy"
    when: Forward = "before"


@dataclass(frozen=True)
class Stale:
    """Reads and lists are answered with the state of ``seconds`` ago, and new watches start from there.

    ``version``: that of one moment instead (``FaultProxy.version()``), which does not move on with the clock. The
    state is the apiserver's own: the request is sent with that resourceVersion and ``resourceVersionMatch=Exact``.
    Nothing older than the proxy itself can be served.
    """

    seconds: float = 0.0
    version: str = ""


@dataclass(frozen=True)
class Call:
    """A function is called with the request and finished before it goes on: a crash point.

    ``then``: what follows. The usual crash of a client at a write is ``Call(kill, when="before", then="cut")`` (the
    write never happened) or ``Call(kill, when="after", then="cut")`` (it happened, the client never learnt).
    The function runs in a thread; an error in it is raised when the proxy is closed.
    """

    function: Callable[[RequestInfo], object]
    when: Forward = "before"
    then: Literal["continue", "cut"] = "continue"


@dataclass(frozen=True)
class DropEvent:
    """The client is not told of the event."""


@dataclass(frozen=True)
class DuplicateEvent:
    """The client is told of the event twice."""


@dataclass(frozen=True)
class DelayEvents:
    """The event, and what follows it in its watch, come ``seconds`` late."""

    seconds: float


@dataclass(frozen=True)
class StallWatch:
    """Nothing more is sent on the watch, bookmarks included, and it stays open; removing the rule lets all through."""


@dataclass(frozen=True)
class CutWatch:
    """The connection of the watch is cut in place of the event."""


@dataclass(frozen=True)
class WatchGone:
    """The watch gets an ERROR event with code 410 in place of the event and ends, as after a compaction."""


RequestFault = Cut | Delay | Duplicate | Status | Stale | Call
EventFault = DropEvent | DuplicateEvent | DelayEvents | StallWatch | CutWatch | WatchGone


@dataclass(eq=False)
class Rule:
    """A match and what happens. ``hits`` tells whether it did, so that a test can assert that its fault was real."""

    match: Match | EventMatch
    fault: RequestFault | EventFault
    hits: int = 0
    _seen: int = field(default=0, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.match, EventMatch) != isinstance(self.fault, EventFault):
            raise TypeError(f"{type(self.fault).__name__} does not go with {type(self.match).__name__}")
        self._random = random.Random(self.match.seed)

    def hit_by(self, info: RequestInfo, subject: Any) -> bool:
        """Count a request (``subject``: its body) or an event of a watch (the event); true when it is to be hit."""
        if not self.match.fits(info, subject):
            return False
        with self._lock:
            self._seen += 1
            wanted = self.match.nth
            if wanted is not None and self._seen not in ({wanted} if isinstance(wanted, int) else wanted):
                return False
            if self.match.times is not None and self.hits >= self.match.times:
                return False
            if self.match.probability is not None and self._random.random() >= self.match.probability:
                return False
            self.hits += 1
            return True


def _fits(pattern: str | None, value: str) -> bool:
    return pattern is None or re.fullmatch(pattern, value) is not None
