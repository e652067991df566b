"""A ledger of loads, and the clock that it reads."""

from __future__ import annotations

from kvserving_connector.core.loads import LoadLedger, Loads


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def ledger(clock: Clock, policy: Loads = Loads.AUTO, has_l2: bool = True, timeout_s: float = 30.0) -> LoadLedger:
    return LoadLedger(loads=policy, has_l2=has_l2, timeout_s=timeout_s, clock=clock)
