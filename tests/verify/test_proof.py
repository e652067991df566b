"""Each way in which a transfer is not proved, judged from evidence as engines gave it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvserving_operator.reasons import Reason
from kvserving_operator.verify.counters import Counters
from kvserving_operator.verify.legs import Answer, Failure
from kvserving_operator.verify.mark import Signature
from kvserving_operator.verify.proof import Cause, PairEvidence, RouterEvidence, judge_pair, judge_router, pairs

RECEIPT = {
    "version": 1,
    "role": "decode",
    "revision": "r1",
    "consumer": "engine-d",
    "producer": "engine-p",
    "prompt_tokens": 1024,
    "external_tokens": 1023,
    "local_tokens": 0,
    "bytes": 4_194_304,
    "descriptors": 8,
    "seconds": 0.01,
    "transport": "nixl/UCX",
    "refused": None,
}
HANDOFF = Answer({"remote_engine_id": "engine-p", "remote_block_ids": [[1]]}, 1024, "length", 0.5)
COUNTED = Counters(transferred_bytes=4_194_304, transfers=1, external_hits=1023, receipts=1, connector=True)


def delivery(**changes: Any) -> Answer:
    return Answer({"kvserving_receipt": {**RECEIPT, **changes}}, 1024, "length", 0.1)


PROVED = PairEvidence("p-0", "d-0", "r1", HANDOFF, Signature("r1", 1800000000, valid=True), delivery(), COUNTED)
NO_RECEIPT = replace(PROVED, delivery=Answer(None, 1024, "length", 0.1))


def test_a_receipt_that_covers_the_prompt_and_moved_counters_are_proof() -> None:
    verdict = judge_pair(PROVED)
    assert verdict.ok
    assert verdict.sentence == "1023 of 1024 prompt tokens, 4.19 MB in 0.0100 s, 0.42 GB/s, nixl/UCX"
    assert verdict.to_json() == {
        "ok": True,
        "message": verdict.sentence,
        "tokens": 1023,
        "promptTokens": 1024,
        "bytes": 4_194_304,
        "seconds": 0.01,
        "transport": "nixl/UCX",
    }


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1.23056, "4.19 MB in 1.23 s, 3.41 MB/s"),
        (0.0999, "4.19 MB in 0.0999 s, 41.99 MB/s"),
        (0.01, "4.19 MB in 0.0100 s, 0.42 GB/s"),
    ],
)
def test_a_slow_transfer_is_told_in_units_that_show_it(seconds: float, shown: str) -> None:
    assert f", {shown}, nixl/UCX" in judge_pair(replace(PROVED, delivery=delivery(seconds=seconds))).sentence


@pytest.mark.parametrize(
    ("evidence", "cause", "words"),
    [
        pytest.param(
            replace(PROVED, handoff=Failure("unreachable", "prefill p-0 at http://h:1 cannot be reached: refused")),
            Cause.UNREACHABLE,
            "prefill p-0 at http://h:1 cannot be reached",
            id="prefill does not listen",
        ),
        pytest.param(
            replace(PROVED, handoff=Failure("timeout", "prefill p-0 did not answer /v1/completions within 60 s")),
            Cause.HUNG,
            "within 60 s",
            id="prefill hangs",
        ),
        pytest.param(
            replace(PROVED, handoff=replace(HANDOFF, params=None)),
            Cause.NO_PARAMETERS,
            "prefill p-0 returned no transfer parameters: it runs without connector configuration",
            id="prefill without connector",
        ),
        pytest.param(
            replace(PROVED, signature=None),
            Cause.UNSIGNED,
            "prefill p-0 does not sign its transfer parameters",
            id="prefill with vLLM's connector",
        ),
        pytest.param(
            replace(PROVED, signature=Signature("r1", 1, valid=False)),
            Cause.BAD_SIGNATURE,
            "prefill p-0 signs with another key",
            id="prefill with another key",
        ),
        pytest.param(
            replace(PROVED, signature=Signature("r0", 1, valid=True)),
            Cause.FOREIGN_REVISION,
            "foreign_revision: prefill p-0 runs revision r0, decode d-0 r1",
            id="prefill of another revision",
        ),
        pytest.param(
            replace(PROVED, delivery=Failure("timeout", "decode d-0 did not answer /v1/completions within 60 s")),
            Cause.HUNG,
            "decode d-0 did not answer",
            id="decode hangs",
        ),
        pytest.param(
            replace(PROVED, delivery=Failure("status", "decode d-0 answered 500: load failed", 500)),
            Cause.TRANSFER_FAILED,
            "decode d-0 could not load the KV of prefill p-0: decode d-0 answered 500",
            id="load failed, policy fail",
        ),
        pytest.param(
            replace(PROVED, delivery=Failure("status", "decode d-0 answered 404: no such model", 404)),
            Cause.REQUEST_FAILED,
            "404",
            id="decode serves another model",
        ),
        pytest.param(
            replace(NO_RECEIPT, counted=Counters()),
            Cause.NO_CONNECTOR,
            "decode d-0 runs without connector configuration",
            id="decode without connector",
        ),
        pytest.param(
            replace(NO_RECEIPT, counted=Counters(refused={"foreign_revision": 1}, connector=True)),
            Cause.FOREIGN_REVISION,
            "foreign_revision: decode d-0 refused the transfer parameters of a prefill of revision r1",
            id="decode of another revision",
        ),
        pytest.param(
            replace(NO_RECEIPT, counted=Counters(connector=True)),
            Cause.NO_RECEIPT,
            "decode d-0 did not accept the probe's mark",
            id="decode with another key",
        ),
        pytest.param(
            replace(PROVED, delivery=delivery(refused="bad_signature", external_tokens=0, producer=None)),
            Cause.BAD_SIGNATURE,
            "bad_signature: decode d-0 (revision r1) refused",
            id="decode refuses the signature",
        ),
        pytest.param(
            replace(PROVED, delivery=delivery(refused="expired", external_tokens=0)),
            Cause.EXPIRED,
            "expired: decode d-0",
            id="the lease was over when decode took the parameters",
        ),
        pytest.param(
            replace(PROVED, delivery=delivery(refused="foreign_prompt", external_tokens=0)),
            Cause.REFUSED,
            "foreign_prompt: decode d-0",
            id="decode refuses for another reason",
        ),
        pytest.param(
            replace(PROVED, delivery=delivery(external_tokens=0, bytes=0), counted=Counters(connector=True)),
            Cause.RECOMPUTED,
            "decode d-0 computed all 1024 prompt tokens again",
            id="decode recomputes",
        ),
        pytest.param(
            replace(PROVED, delivery=delivery(external_tokens=512)),
            Cause.PARTIAL,
            "received 512 of 1024 prompt tokens",
            id="decode receives a part",
        ),
        pytest.param(
            replace(PROVED, delivery=delivery(producer="engine-x")),
            Cause.WRONG_PRODUCER,
            "from engine engine-x, not from prefill p-0",
            id="KV of somebody else",
        ),
        pytest.param(
            replace(PROVED, counted=replace(COUNTED, failed_transfers=1)),
            Cause.TRANSFER_FAILED,
            "a transfer from prefill p-0 to decode d-0 failed",
            id="a transfer failed, policy recompute",
        ),
        pytest.param(
            replace(PROVED, counted=Counters(connector=True)),
            Cause.NOT_COUNTED,
            "its transfer counters did not move",
            id="a receipt without bytes",
        ),
        pytest.param(
            replace(PROVED, counted=Failure("timeout", "decode d-0 did not answer /metrics within 60 s")),
            Cause.HUNG,
            "/metrics",
            id="counters cannot be read",
        ),
    ],
)
def test_a_pair_that_proves_nothing_says_why(evidence: PairEvidence, cause: Cause, words: str) -> None:
    verdict = judge_pair(evidence)
    assert not verdict.ok
    assert verdict.cause is cause
    assert words in verdict.sentence
    assert verdict.to_json()["reason"] == cause.reason.value


@pytest.mark.parametrize(("tokens", "covered"), [(1024, True), (1023, True), (1022, False)])
def test_the_last_token_alone_may_be_missing(tokens: int, covered: bool) -> None:
    assert judge_pair(replace(PROVED, delivery=delivery(external_tokens=tokens))).ok is covered


def test_tokens_that_decode_had_itself_need_no_transfer() -> None:
    assert judge_pair(replace(PROVED, delivery=delivery(external_tokens=1007, local_tokens=16))).ok


@pytest.mark.parametrize(
    ("answer", "cause", "words"),
    [
        (Failure("unreachable", "router r cannot be reached"), Cause.UNREACHABLE, "router r cannot be reached"),
        (Failure("status", "router r answered 503: no_available_workers", 503), Cause.REQUEST_FAILED, "503"),
        (Answer(None, 1024, "length", 1.0), Cause.NO_RECEIPT, "carries no receipt"),
        (delivery(producer=None, external_tokens=0), Cause.NO_HANDOFF, "hands no transfer parameters to decode"),
        (delivery(external_tokens=0), Cause.RECOMPUTED, "computed all 1024"),
        (delivery(refused="unsigned", external_tokens=0), Cause.UNSIGNED, "unsigned: the decode that router r chose"),
    ],
)
def test_a_router_that_proves_nothing_says_why(answer: Answer | Failure, cause: Cause, words: str) -> None:
    verdict = judge_router(RouterEvidence("r", "r1", answer))
    assert verdict.cause is cause
    assert words in verdict.sentence


def test_a_receipt_through_the_router_is_proof() -> None:
    assert judge_router(RouterEvidence("r", "r1", delivery())).ok


@given(st.integers(0, 12), st.integers(0, 12))
def test_every_engine_is_in_a_pair_and_no_pair_is_spare(prefills: int, decodes: int) -> None:
    left = [f"p{i}" for i in range(prefills)]
    right = [f"d{i}" for i in range(decodes)]
    found = pairs(left, right)
    if not left or not right:
        assert found == ()
        return
    assert {p for p, _ in found} == set(left)
    assert {d for _, d in found} == set(right)
    assert len(found) == max(prefills, decodes)


def test_every_cause_has_a_reason() -> None:
    assert {cause.reason for cause in Cause} <= set(Reason)


def test_a_refused_signature_says_that_a_new_key_arrives_by_itself_before_anybody_restarts() -> None:
    refused = replace(PROVED, delivery=delivery(refused="bad_signature", external_tokens=0, producer=None))
    message = judge_pair(refused).sentence
    assert "engines read the Secret again within about two minutes" in message
    assert message.index("two minutes") < message.index("restart the one whose key is old")
