"""Counters and a gauge of the API-server process, in the registry behind the engine's ``/metrics``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from prometheus_client import Counter, Gauge

from kvserving_connector.core.refusal import Refusal


@dataclass(frozen=True)
class GuardCounters:
    """Counters of the guard. ``refused`` has the label ``reason``, one of ``Refusal``.

    ``unanswered`` is a gauge: vLLM's own tell of the last step that ended, so that an engine which hangs in its first
    one looks idle.
    """

    refused: Counter
    accepted: Counter
    unanswered: Gauge


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
    unanswered = Gauge(
        "kvserving:guard_unanswered_requests",
        "Completions that were passed to the engine and have got no part of their answer yet.",
        multiprocess_mode="livesum",
    )
    return GuardCounters(refused, accepted, unanswered)
