"""``python -m kvserving_connector.drain --timeout S [--port P] [--leader]``: hold a pod's stop until it is drained.

Runs as preStop. It waits until the engine has no request, or for S seconds; a prefill engine then keeps its blocks
for the lease of what it finished last. Never shorter than 3 s: a router needs that long to take the pod out.

Of an engine whose requests get nothing for two minutes no more is expected: it hangs, or a pod of its group is gone.
A pod that is a further part of an engine on several nodes asks the engine's leader, whose ranks need its own.
An engine that has just been started is given the time to heed the signal that follows, which is repeated.
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kvserving_connector.core.policy import Role
from kvserving_connector.settings import Settings
from kvserving_connector.stopping import await_heed, insist

MIN_SECONDS = 3.0
POLL_SECONDS = 0.5
STALLED_SECONDS = 120.0
HEED_SECONDS = 60.0
ANSWER_SECONDS = 5.0
_GONE_READINGS = 3
LEADER = "LWS_LEADER_ADDRESS"

_BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_DONE = "vllm:request_success_total"
# What a step changes; a long prompt moves the share of KV in use at each of its parts.
_WORK = (*_BUSY, _DONE, "vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc")


@dataclass(frozen=True)
class Load:
    """One reading of the engine's metrics: requests it has now, those it has finished so far, and what else moves."""

    busy: float
    finished: float
    work: tuple[float, ...] = ()


def parse(text: str) -> Load:
    """Read vLLM's Prometheus text, summed over its engines and labels."""
    sums = dict.fromkeys(_WORK, 0.0)
    for line in text.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in sums:
            sums[name] += float(line.rsplit(" ", 1)[1])
    return Load(sum(sums[name] for name in _BUSY), sums[_DONE], tuple(sums.values()))


class Silence(Enum):
    """Why there is no reading."""

    GONE = "gone"
    """Nobody takes the connection."""
    LATE = "late"
    """Somebody does, and gives no reading of use within ``ANSWER_SECONDS``: an event loop short of CPU, for one."""


Reading = Load | Silence


def read(host: str, port: int) -> Reading:
    """Read the engine's load."""
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    try:
        try:
            connection.connect()
        except OSError:
            return Silence.GONE
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
        return parse(text) if response.status == 200 else Silence.LATE
    except (OSError, http.client.HTTPException, ValueError, IndexError):
        return Silence.LATE
    finally:
        connection.close()


class _Engine:
    """An engine as it is read again and again; one that is gone three times in a row is."""

    def __init__(self, load: Callable[[], Reading]) -> None:
        self._load = load
        self._missing = 0

    def look(self) -> Reading:
        reading = self._load()
        self._missing = self._missing + 1 if reading is Silence.GONE else 0
        return reading

    @property
    def gone(self) -> bool:
        return self._missing >= _GONE_READINGS


def drain(
    load: Callable[[], Reading],
    *,
    timeout: float,
    lease: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until the engine is drained; return whether it had no request left.

    ``timeout`` bounds the wait for requests, ``lease`` (0 on decode) is kept after the last moment at which a request
    may have finished, both in seconds. An engine that three times in a row is gone is not waited for, nor is one whose
    requests have stood still for ``STALLED_SECONDS``. One that answers late may have requests, and keeps its lease.
    """
    engine = _Engine(load)
    start = clock()
    active = moved = start
    work: tuple[float, ...] | None = None
    seen: float | None = None
    idle = False
    while True:
        now = clock()
        reading = engine.look()
        if isinstance(reading, Load):
            if reading.work != work:
                work, moved = reading.work, now
            if reading.busy > 0 or (seen is not None and reading.finished != seen):
                active = now
            if seen is None and reading.finished == 0 and reading.busy == 0:
                active = start - lease
            seen = reading.finished
        idle = isinstance(reading, Load) and reading.busy == 0
        if engine.gone and now - start >= MIN_SECONDS:
            return True
        if not idle and now - moved >= STALLED_SECONDS:
            return False
        if now - start >= MIN_SECONDS and (idle or now - start >= timeout):
            break
        sleep(POLL_SECONDS)
    while clock() < active + lease and not engine.gone:
        engine.look()
        sleep(POLL_SECONDS)
    return idle


def main(arguments: list[str] | None = None) -> int:
    """Run the drain from the command line; always returns 0, so that a stop is never held by its own hook."""
    parser = argparse.ArgumentParser(prog="python -m kvserving_connector.drain", description=__doc__)
    parser.add_argument("--timeout", type=float, required=True, help="seconds to wait for running requests")
    parser.add_argument("--port", type=int, default=8000, help="the engine's HTTP port (default: 8000)")
    parser.add_argument("--leader", action="store_true", help=f"ask the pod that {LEADER} names, not this one")
    options = parser.parse_args(arguments)
    settings = Settings.from_environment()
    host = settings.bind_address if settings.bind_address not in ("", "0.0.0.0", "::") else "127.0.0.1"  # noqa: S104
    if options.leader:
        host = os.environ.get(LEADER, "")
        if not host:
            sys.stdout.write(f"{LEADER} is not set: this pod is of no group\n")
            return 0
    lease = float(settings.lease_seconds) if settings.role is Role.PREFILL else 0.0
    drained = drain(lambda: read(host, options.port), timeout=options.timeout, lease=lease)
    sys.stdout.write("drained\n" if drained else "timeout: requests are still running\n")
    if not await_heed(HEED_SECONDS):
        sys.stdout.write("the engine does not handle SIGTERM\n")
    if read(host, options.port) is Silence.GONE:
        insist()
    return 0


if __name__ == "__main__":
    sys.exit(main())
