"""Counters of the API-server process, in the registry behind the engine's ``/metrics``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from prometheus_client import Counter

from kvserving_connector.core.refusal import Refusal


@dataclass(frozen=True)
class GuardCounters:
    """Counters of the guard. ``refused`` has the label ``reason``, one of ``Refusal``."""

    refused: Counter
    accepted: Counter


@lru_cache(maxsize=1)
def guard_counters() -> GuardCounters:
    """Return the process's guard counters, registered at the first call; every reason starts at 0."""
    refused = Counter(
        "kvserving:guard_refused_total",
        "Transfer parameters that the guard removed from requests, or refused with the request.",
        ["reason"],
    )
    for reason in Refusal:
        refused.labels(reason.value)
    accepted = Counter(
        "kvserving:guard_accepted_total",
        "Requests whose transfer parameters the guard let through.",
    )
    return GuardCounters(refused, accepted)
