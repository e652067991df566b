"""Verification over HTTP, against stand-in engines."""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.verify.standin import KEY, REVISION, Engine, serving

from kvserving_operator.verify import Verification, verify, verify_local
from kvserving_operator.verify.legs import Endpoint
from kvserving_operator.verify.proof import Cause


def prefill(number: int = 0, *faults: str, **changes: Any) -> Engine:
    return Engine(f"p-{number}", "prefill", frozenset(faults), **changes)


def decode(number: int = 0, *faults: str, **changes: Any) -> Engine:
    return Engine(f"d-{number}", "decode", frozenset(faults), **changes)


def run(
    engines: list[Engine], *, passthrough: bool = False, timeout: float = 5.0, through_router: bool = True
) -> Verification:
    async def main() -> Verification:
        async with serving(engines, passthrough=passthrough) as (endpoints, router, _):
            return await verify(
                endpoints,
                keys=(KEY,),
                revision=REVISION,
                model="tiny",
                router=router if through_router else None,
                timeout=timeout,
            )

    return asyncio.run(main())


def test_a_service_that_transfers_is_verified() -> None:
    found = run([prefill(), decode()])
    assert found.ok
    assert found.reason == "Verified"
    first, second, summary = found.lines()
    assert first == "ok     p-0 -> d-0          509 of 510 prompt tokens, 2.08 MB in 0.0010 s, 2.08 GB/s, nixl/UCX"
    assert second.startswith("ok     through the router")
    assert summary == "verified: KV moved from prefill to decode in 1 pair of engines and through the router"
    assert json.loads(json.dumps(found.to_json()))["pairs"][0]["tokens"] == 509


@pytest.mark.parametrize("engines", [[prefill(0, "broken once"), decode()], [prefill(), decode(0, "broken once")]])
def test_a_failure_that_passes_is_told_with_the_proof(engines: list[Engine]) -> None:
    found = run(engines, through_router=False)
    assert found.ok
    line = found.lines()[0]
    assert line.startswith("ok     p-0 -> d-0  509 of 510 prompt tokens")
    assert "(second probe; the first: " in line
    assert "answered 500" in line


def test_a_probe_that_waited_longer_than_its_lease_is_sent_again_once() -> None:
    assert run([prefill(), decode(0, "late once")], through_router=False).ok
    found = run([prefill(), decode(0, "late")], through_router=False)
    assert found.reason == "RecomputingKV"
    assert "expired: decode d-0" in found.message
    assert "lengthen spec.transfer.lease" in found.message


@pytest.mark.parametrize(("fault", "probes"), [("broken", 2), ("no connector", 1)])
def test_a_probe_is_sent_again_once_and_only_where_an_engine_answered_an_error(fault: str, probes: int) -> None:
    engine = prefill(0, fault)
    found = run([engine, decode()], through_router=False)
    assert not found.ok
    assert len(engine.seen) == probes
    line = found.lines()[0]
    assert line.endswith(" (two probes)") is (probes == 2)
    assert "the first: " not in line, "the same sentence stands once"


def test_every_engine_is_probed_with_a_prompt_of_its_own() -> None:
    engines = [prefill(0), prefill(1), decode(0), decode(1), decode(2)]
    assert run(engines, through_router=False).ok
    assert all(engine.seen for engine in engines)
    prompts = [body["prompt"] for engine in engines if engine.role == "decode" for body in engine.seen]
    assert len(set(prompts)) == len(prompts) == 3
    marks = [
        body["vllm_xargs"]["kvserving_probe"] for engine in engines if engine.role == "decode" for body in engine.seen
    ]
    assert len(set(marks)) == 3


def test_the_prefill_leg_has_the_shape_that_routers_give_it() -> None:
    engine = prefill()
    run([engine, decode()], through_router=False)
    (body,) = engine.seen
    assert (body["max_tokens"], body["n"], body["stream"]) == (1, 1, False)
    assert body["kv_transfer_params"] == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }


def test_parameters_reach_decode_as_they_came() -> None:
    giver, taker = prefill(), decode()
    run([giver, taker], through_router=False)
    (body,) = taker.seen
    assert body["kv_transfer_params"] == giver.handoff(len(body["prompt"].split()))


@pytest.mark.parametrize(
    ("engines", "cause", "words"),
    [
        ([prefill(0, "no connector"), decode()], Cause.NO_PARAMETERS, "prefill p-0 returned no transfer parameters"),
        ([prefill(0, "unsigned"), decode()], Cause.UNSIGNED, "prefill p-0 does not sign"),
        ([prefill(0, key=b"other"), decode()], Cause.BAD_SIGNATURE, "prefill p-0 signs with another key"),
        ([prefill(0, revision="r0"), decode()], Cause.FOREIGN_REVISION, "p-0 runs revision r0, decode d-0 0123abcd"),
        ([prefill(0, "broken"), decode()], Cause.REQUEST_FAILED, "prefill p-0 answered 500"),
        ([prefill(), decode(0, "no connector")], Cause.NO_CONNECTOR, "decode d-0 runs without connector"),
        ([prefill(), decode(0, revision="r0")], Cause.NO_RECEIPT, "d-0 did not accept the probe's mark"),
        ([prefill(), decode(0, "recomputes")], Cause.RECOMPUTED, "d-0 computed all 510 prompt tokens again"),
        ([prefill(), decode(0, "broken")], Cause.TRANSFER_FAILED, "decode d-0 could not load the KV of prefill p-0"),
        ([prefill(), decode(0), decode(1, "recomputes")], Cause.RECOMPUTED, "decode d-1"),
    ],
)
def test_a_service_that_does_not_transfer_says_who_and_why(engines: list[Engine], cause: Cause, words: str) -> None:
    found = run(engines, through_router=False)
    assert not found.ok
    assert found.reason == cause.reason
    assert words in found.message
    assert found.lines()[-1] == f"not verified ({cause.reason}): {found.message}"


def test_a_router_that_hands_nothing_over_is_seen() -> None:
    found = run([prefill(), decode()], passthrough=True)
    assert [pair.verdict.ok for pair in found.pairs] == [True]
    assert found.router is not None
    assert found.router.cause is Cause.NO_HANDOFF


def test_a_hung_engine_ends_verification_in_bounded_time_and_is_named() -> None:
    started = time.monotonic()
    found = run([prefill(0, "hung"), decode()], timeout=0.5, through_router=False)
    assert time.monotonic() - started < 5
    assert found.message == "prefill p-0 did not answer /v1/completions within 0.5 s"
    assert found.reason == "EngineHung"


def test_an_engine_that_does_not_listen_is_named() -> None:
    port = free_port()

    async def main() -> Verification:
        async with serving([decode()]) as (endpoints, _, _):
            gone = Endpoint("p-9", "prefill", f"http://127.0.0.1:{port}")
            return await verify((gone, *endpoints), keys=(KEY,), revision=REVISION, model="tiny")

    found = asyncio.run(main())
    assert found.reason == "EngineUnreachable"
    assert f"prefill p-9 at http://127.0.0.1:{port} cannot be reached: Connection refused" in found.message


def test_a_service_without_prefill_has_nothing_to_transfer() -> None:
    found = run([decode()])
    assert found.ok
    assert found.pairs == ()
    assert found.message == "no prefill engines: nothing to transfer"
    assert found.lines()[-1] == "answers; no prefill engines, so nothing to transfer"


def test_prompts_and_keys_reach_neither_logs_nor_outcome(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    engines = [prefill(), decode(0, "broken")]
    found = run(engines)
    prompts = [body["prompt"] for engine in engines for body in engine.seen]
    written = caplog.text + repr(found) + json.dumps(found.to_json()) + "\n".join(found.lines())
    assert prompts
    assert not [text for text in prompts if text[:24] in written]
    assert KEY.decode() not in written


def test_a_local_service_is_verified_from_its_state(tmp_path: Path) -> None:
    # A name with dots has another one in its Secret's.
    keys = tmp_path / "secrets" / "a-b-c-845e3-keys"
    keys.mkdir(parents=True)
    (keys / "signing").write_text(KEY.decode() + "\n")

    async def main() -> tuple[Verification, list[str | None]]:
        async with serving([prefill(), decode()]) as (endpoints, router, seen):
            pods = [
                {"name": e.pod, "role": e.role, "address": "127.0.0.1", "port": int(e.url.rpartition(":")[2])}
                for e in (*endpoints, router)
            ]
            state = {
                "name": "a.b.c",
                "revision": REVISION,
                "served_model": "tiny",
                "directory": str(tmp_path),
                "router": {"url": router.url + "/"},
                "pods": pods,
            }
            return await verify_local(state, api_key="client key"), seen.authorization

    found, authorization = asyncio.run(main())
    assert found.ok, found.message
    assert authorization == ["Bearer client key"]
