"""Children and statuses that someone else changes each time they are set: an operator, a webhook, a busy hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_FREE = 3
_LONGEST = 30.0
_QUIET = 600.0
_MOST = 20_000


@dataclass(frozen=True)
class _Repeats:
    digest: str
    count: int
    at: float


class Contests:
    """Slows down the setting of what does not stay set; ``now`` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._repeats: dict[str, _Repeats] = {}

    def pause(self, uid: str, digest: str) -> float:
        """Return 0 when the child ``uid`` may be set to ``digest`` now, which is counted; else the seconds to wait.

        The first three times within ten minutes are free, so that a change by hand is undone at once. Then the pause
        doubles from a second to half a minute: two writers never stop, but they no longer load the cluster.
        """
        now = self._now()
        known = self._repeats.get(uid)
        if known is None or known.digest != digest or now - known.at > _QUIET:
            known = _Repeats(digest, 0, now)
        wait = 0.0 if known.count < _FREE else min(_LONGEST, 2.0 ** min(known.count - _FREE, 10))
        if now < known.at + wait:
            return known.at + wait - now
        if len(self._repeats) >= _MOST:
            self._repeats.clear()
        self._repeats[uid] = _Repeats(digest, known.count + 1, now)
        return 0.0
