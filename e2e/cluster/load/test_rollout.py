"""Rollouts of real engines under 20 streams, through the Service: no request is lost, and each meets one revision."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from e2e.cluster.cgroups import processes
from e2e.cluster.service import NAME, UP_SECONDS, Served
from e2e.local.streams import WHOLE, Streams
from e2e.operator.objects import condition, eventually, path_of

pytestmark = [pytest.mark.engines, pytest.mark.timeout(2 * UP_SECONDS)]

CLIENTS = 20
TOKENS = 48
PROMPT_TOKENS = 150
ENGINE = {"device": "cpu", "args": ["--enforce-eager", "--max-model-len=4096", "--dtype=float32"]}


@pytest.fixture(scope="module")
def ready(served: Served, operator: str) -> Served:
    """One prefill and one decode that answer."""
    served.apply(transfer={"lease": "5s"})
    served.wait("Ready")
    return served


@pytest.fixture
def load(ready: Served) -> Iterator[Streams]:
    """All clients ask while a test runs, and none may lose an answer."""

    def body(number: int) -> dict[str, object]:
        prompt = ready.texts.of(PROMPT_TOKENS, 20_000 + number)
        return {"model": NAME, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}

    url = ready.url
    streams = Streams(CLIENTS, lambda: url, body, chunks=TOKENS, spread=5.0)
    with streams.flowing():
        eventually(lambda: streams.outcomes[WHOLE], lambda count: count >= CLIENTS, what="all clients ask", timeout=120)
        yield streams
    print(f"{sum(streams.outcomes.values())} requests: {dict(streams.outcomes)}")


def rolled_out(served: Served, former: str) -> str:
    """Return the revision that serves once it is another one, alone and ready."""
    found = served.lane.plane.api.wait(
        path_of(served.namespace, NAME),
        lambda o: (
            o is not None
            and o["status"].get("revision") != former
            and "rollout" not in o["status"]
            and condition(o, "Ready").get("status") == "True"
        ),
        what="the next revision serves alone",
        timeout=UP_SECONDS,
    )
    assert found is not None
    return str(found["status"]["revision"])


def test_another_revision_takes_over_under_load(ready: Served, load: Streams) -> None:
    former = ready.wait("Ready")["status"]["revision"]
    before = {pod["metadata"]["uid"] for role in ("prefill", "decode") for pod in ready.pods(role)}
    ready.merge({"engine": {"kv": {"hashSeed": "7"}}})
    rolled_out(ready, former)
    after = {pod["metadata"]["uid"] for role in ("prefill", "decode") for pod in ready.pods(role)}
    assert not before & after
    assert set(load.outcomes) == {WHOLE}


def test_a_role_is_replaced_alone_under_load(ready: Served, load: Streams) -> None:
    decode = ready.pod("decode")["metadata"]["uid"]
    ready.merge({"prefill": {"args": ["--max-num-batched-tokens=2048"]}})
    ready.wait("Ready")
    assert ready.pod("decode")["metadata"]["uid"] == decode
    assert set(load.outcomes) == {WHOLE}


def test_a_revision_that_cannot_start_leaves_the_former_one_serving(ready: Served, load: Streams) -> None:
    former = ready.wait("Ready")["status"]["revision"]
    # No such option: the engines end at once, again and again.
    ready.merge({"engine": {"args": [*ENGINE["args"], "--kv-cache-dtype=no_such_type"]}})
    told = ready.wait("Degraded", "True", "PodFailing", timeout=180)
    assert condition(told, "Available")["status"] == "True"
    assert told["status"]["revision"] == former
    ready.merge({"engine": {"args": ENGINE["args"]}})
    ready.wait("Ready")
    assert ready.lane.plane.api.get(path_of(ready.namespace, NAME))["status"]["revision"] == former
    assert set(load.outcomes) == {WHOLE}


def test_a_stopped_engine_is_replaced_and_costs_what_it_held(ready: Served, load: Streams) -> None:
    ready.wait("Ready")
    pod = ready.pod("decode")
    restarts = pod["status"]["containerStatuses"][0]["restartCount"]
    for process in processes(pod["metadata"]["uid"]):
        os.kill(process, signal.SIGSTOP)
    path = f"/api/v1/namespaces/{ready.namespace}/pods/{pod['metadata']['name']}"
    ready.lane.plane.api.wait(
        path,
        lambda found: found is None or found["status"]["containerStatuses"][0]["restartCount"] > restarts,
        what="the stopped engine is killed",
        timeout=75,
    )
    ready.wait("Ready")
    assert load.outcomes[WHOLE] > CLIENTS
    lost = sum(count for outcome, count in load.outcomes.items() if outcome != WHOLE)
    assert lost <= CLIENTS, f"each client may have had one stream there: {dict(load.outcomes)}"
