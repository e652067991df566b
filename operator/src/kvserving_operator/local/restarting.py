"""When a process that ended is started again, and when no more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Pauses between restarts in seconds, and how many ends before the first readiness make a failure.

    ``attempts`` of None: none do, nor does anything else; the pod is restarted for ever, as in a cluster.
    """

    first: float = 1.0
    longest: float = 60.0
    attempts: int | None = 3
    hurry_grace: float = 3.0
    """Seconds between SIGTERM and SIGKILL once the user is in a hurry."""

    def given_up(self, failures: int, *, too_slow: bool, settled: bool) -> bool:
        """Whether a pod that was never ready and ended so often has failed for good.

        One whose end is ``settled`` by its arguments has: it gets the same ones again.
        """
        return self.attempts is not None and (too_slow or settled or failures >= self.attempts)

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return min(self.longest, self.first * 2.0 ** min(max(0, failures - 1), 30))
