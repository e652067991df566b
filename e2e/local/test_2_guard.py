"""Transfer parameters that clients make up: no engine dies, none dials, every refusal is counted."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest
from e2e.local import forged
from e2e.local.asking import Reply, Texts, ask
from e2e.local.legs import handoff
from e2e.local.odd import ask_odd
from e2e.local.sockets import Watch
from e2e.local.stage import LEASE_SECONDS, Service, Stage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvserving_operator.verify import counters

BATCH = 50
BATCHES = 7
SECONDS = 60.0
TARGETS = ("router", "prefill", "decode")


@pytest.mark.parametrize("target", TARGETS)
def test_forged_parameters_stop_no_engine_and_dial_nobody(one_to_one: Service, stage: Stage, target: str) -> None:
    """``BATCH * BATCHES`` bodies for each target: more than 1,000 in all."""
    before = _engines(one_to_one)
    counted = {role: _counters(one_to_one.engine_url(role)) for role in ("prefill", "decode")}
    url = one_to_one.url if target == "router" else one_to_one.engine_url(target)
    sent = several = 0

    with _listener() as (port, listener), Watch() as watch:
        bodies = st.lists(_bodies(port, one_to_one.state()["revision"]), min_size=BATCH, max_size=BATCH)

        @settings(max_examples=BATCHES, deadline=None, derandomize=True, database=None,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(bodies)
        def check(batch: list[dict[str, Any]]) -> None:
            nonlocal sent, several
            statuses = asyncio.run(_post_all(url, batch))
            assert set(statuses) <= {200, 400}, sorted(statuses)
            assert _engines(one_to_one) == before
            sent += len(batch)
            several += sum(isinstance(body["prompt"], list) and _is_json(body) for body in batch)

        check()
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()

    assert not watch.seen & set(forged.FOREIGN_HOSTS)
    assert watch.samples > 10
    grown = {role: _counters(one_to_one.engine_url(role)).since(counted[role]) for role in ("prefill", "decode")}
    if target == "router":
        # smg puts prefill's own parameters in the place of the client's, except where prefill returned none.
        assert several > 0
        assert sum(grown["decode"].refused.values()) >= several, grown["decode"].refused
    else:
        assert sum(grown[target].refused.values()) >= sent, grown[target].refused
    assert not grown["decode"].failed_transfers
    stage.numbers.append(
        f"guard, {target}: {sent} forged bodies, refused "
        + ", ".join(f"{role} {dict(sorted(grown[role].refused.items()))}" for role in grown)
    )


@pytest.mark.parametrize("target", ["router", "decode"])
def test_requests_that_one_handoff_cannot_serve_are_answered_as_by_a_single_engine(
    one_to_one: Service, texts: Texts, odd_expected: dict[str, Reply], target: str
) -> None:
    url = one_to_one.url if target == "router" else one_to_one.engine_url(target)
    found = asyncio.run(ask_odd(url, texts, kv_transfer_params=forged.complete("127.0.0.1", 1)))
    assert {name: reply.ids for name, reply in found.items()} == {
        name: reply.ids for name, reply in odd_expected.items()
    }


def test_a_real_handoff_serves_no_request_but_its_own(
    one_to_one: Service, texts: Texts, odd_expected: dict[str, Reply]
) -> None:
    """Signed parameters of one prompt with several prompts, several choices, or a changed host."""
    prefill, decode = one_to_one.engine_url("prefill"), one_to_one.engine_url("decode")

    async def main() -> dict[str, Reply]:
        async with aiohttp.ClientSession() as session:
            body = {"model": "tiny", "prompt": texts.of(200, seed=1), "temperature": 0}
            params = await handoff(session, prefill, "/v1/completions", body)
        found = await ask_odd(decode, texts, kv_transfer_params=params)
        moved = await ask_odd(decode, texts, kv_transfer_params={**params, "remote_host": "127.0.0.1"})
        assert {name: reply.ids for name, reply in moved.items()} == {n: r.ids for n, r in odd_expected.items()}
        return found

    before = _counters(decode)
    found = asyncio.run(main())
    assert {name: reply.ids for name, reply in found.items()} == {n: r.ids for n, r in odd_expected.items()}
    refused = _counters(decode).since(before).refused
    assert refused == {"multi_prompt": 1, "multi_choice": 1, "bad_signature": 2}


def test_a_handoff_is_refused_once_its_lease_is_over(
    one_to_one: Service, texts: Texts, odd_expected: dict[str, Reply]
) -> None:
    """Prefill has given the blocks to others by then: what decode read would be another prompt's KV."""
    prefill, decode = one_to_one.engine_url("prefill"), one_to_one.engine_url("decode")
    body = {
        "model": "tiny",
        "prompt": texts.of(700, seed=2),
        "temperature": 0,
        "max_tokens": 16,
        "return_token_ids": True,
    }

    async def main() -> tuple[Reply, Reply]:
        async with aiohttp.ClientSession() as session:
            alone = await ask(session, decode, "/v1/completions", {**body, "cache_salt": "alone"})
            params = await handoff(session, prefill, "/v1/completions", {**body, "cache_salt": "late"})
            await asyncio.sleep(LEASE_SECONDS)
            # Others take the blocks that are free now.
            for seed in range(3, 9):
                other = {**body, "prompt": texts.of(2000, seed=seed), "max_tokens": 1}
                await ask(session, prefill, "/v1/completions", other)
            late = {**body, "cache_salt": "late", "kv_transfer_params": params}
            return alone, await ask(session, decode, "/v1/completions", late)

    before = _counters(decode)
    alone, late = asyncio.run(main())
    assert late.ids == alone.ids
    assert _counters(decode).since(before).refused == {"expired": 1}


def _bodies(port: int, revision: str) -> st.SearchStrategy[dict[str, Any]]:
    common = {"model": "tiny", "max_tokens": 1}
    prompts = st.one_of(
        st.just({"prompt": "licensed work"}),
        st.just({"prompt": "of the"}),
        st.just({"prompt": ["each contributor", "any work"]}),
    )
    made = st.tuples(prompts, forged.params(port, revision)).map(
        lambda parts: {**common, **parts[0], "kv_transfer_params": parts[1]}
    )
    return made


def _is_json(body: dict[str, Any]) -> bool:
    """Whether routers can read what Python writes of it: infinities are no JSON, and smg answers them itself."""
    try:
        json.dumps(body, allow_nan=False)
    except ValueError:
        return False
    return True


async def _post_all(url: str, bodies: list[dict[str, Any]]) -> list[int]:
    timeout = aiohttp.ClientTimeout(SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def post(body: dict[str, Any]) -> int:
            async with session.post(url + "/v1/completions", json=body) as response:
                await response.read()
                return response.status

        statuses = await asyncio.gather(*(post(body) for body in bodies))
        async with session.get(url + "/health") as response:
            assert response.status == 200
        return statuses


def _engines(service: Service) -> list[tuple[str, int, int]]:
    return [(pod["name"], pod["pid"], pod["restarts"]) for role in ("prefill", "decode") for pod in service.pods(role)]


def _counters(url: str) -> counters.Counters:
    import urllib.request

    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        return counters.parse(answer.read().decode())


@contextmanager
def _listener() -> Iterator[tuple[int, socket.socket]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1], listener
