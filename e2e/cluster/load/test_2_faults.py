"""Engines and routers of a real node that are killed or stopped under 20 streams; each has a second one beside it."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from e2e.cluster.cgroups import processes
from e2e.cluster.load.conftest import CLIENTS
from e2e.cluster.service import UP_SECONDS, Served
from e2e.controlplane.api import Json
from e2e.local.streams import CUT, WHOLE, Streams
from e2e.operator.objects import eventually

pytestmark = [pytest.mark.engines, pytest.mark.timeout(2 * UP_SECONDS)]

NOTICED_SECONDS = 75
"""A minute until what is stopped is killed, and time to see it."""

LEFT_OUT_SECONDS = {signal.SIGKILL: 5, signal.SIGSTOP: NOTICED_SECONDS}
"""Until nothing is lost any more with a router that was killed, or stopped."""

BROKEN = ("ServerDisconnectedError", "ClientOSError", "ClientConnectorError")


@pytest.fixture(scope="session")
def pairs(ready: Served) -> Served:
    """Two of each role."""
    ready.merge({role: {"replicas": 2} for role in ("prefill", "decode", "router")})
    ready.wait("Ready")
    return ready


def hit(pod: Json, number: int) -> float:
    """Send a signal to what the containers of a pod run; return when, by the monotonic clock."""
    for process in processes(pod["metadata"]["uid"]):
        # The sandbox is not theirs: with it the pod would lose its address.
        if Path(f"/proc/{process}/comm").read_text().strip() != "pause":
            os.kill(process, number)
    return time.monotonic()


def restarted(served: Served, pod: Json, within: float) -> float:
    """Return the seconds until the container of a pod was started again, or the pod is gone."""
    begun = time.monotonic()
    path = f"/api/v1/namespaces/{served.namespace}/pods/{pod['metadata']['name']}"
    before = pod["status"]["containerStatuses"][0]["restartCount"]
    served.lane.plane.api.wait(
        path,
        lambda found: found is None or found["status"]["containerStatuses"][0]["restartCount"] > before,
        what=f"{pod['metadata']['name']} is started again",
        timeout=within,
    )
    return time.monotonic() - begun


def lost(load: Streams) -> Counter[str]:
    return Counter({outcome: count for outcome, count in load.outcomes.items() if outcome != WHOLE})


def still_served(served: Served, load: Streams) -> None:
    """Return once the object is ready, and requests that are sent from then on are answered."""
    served.wait("Ready")
    before, begun = lost(load), load.outcomes[WHOLE]
    eventually(
        lambda: load.outcomes[WHOLE] - begun, lambda count: count > 2 * CLIENTS, what="more answers", timeout=120
    )
    assert lost(load) == before


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_killed_engine_costs_what_it_held(pairs: Served, load: Streams, role: str) -> None:
    pairs.wait("Ready")
    pod = pairs.pods(role)[0]
    hit(pod, signal.SIGKILL)
    restarted(pairs, pod, NOTICED_SECONDS)
    still_served(pairs, load)
    print(f"a {role} engine killed: {dict(lost(load))}")
    assert set(lost(load)) <= {CUT}
    assert load.outcomes[CUT] <= CLIENTS


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_stopped_engine_is_replaced_and_costs_what_it_held(pairs: Served, load: Streams, role: str) -> None:
    pairs.wait("Ready")
    pod = pairs.pods(role)[0]
    hit(pod, signal.SIGSTOP)
    took = restarted(pairs, pod, NOTICED_SECONDS)
    still_served(pairs, load)
    print(f"a {role} engine stopped: killed after {took:.0f} s, {dict(lost(load))}")
    # Of prefill: what decode was fetching from it, by the failure policy of this object.
    assert set(lost(load)) <= {CUT}
    assert load.outcomes[CUT] <= CLIENTS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_router_that_is_killed_or_stopped_costs_what_it_held(
    pairs: Served, load: Streams, number: signal.Signals
) -> None:
    pairs.wait("Ready")
    pod = pairs.pods("router")[0]
    at = hit(pod, number)
    took = restarted(pairs, pod, NOTICED_SECONDS)
    still_served(pairs, load)
    print(f"a router, signal {number}: started again after {took:.1f} s, {dict(lost(load))}")
    # What it held; and the node sends connections to it, which are refused, until the Service leaves it out.
    assert all(outcome == CUT or outcome.startswith(BROKEN) for outcome in lost(load)), lost(load)
    assert load.last_loss - at < LEFT_OUT_SECONDS[number]
    assert load.outcomes[CUT] <= CLIENTS
