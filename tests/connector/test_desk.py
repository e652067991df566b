from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from tests.connector.support import KEYS, NOW, PROBE_PARAMS, REVISION, handoff, mark
from tests.connector.test_signing import anything

from kvserving_connector.core.desk import Desk
from kvserving_connector.core.handoffs import TransferFacts, merge_facts
from kvserving_connector.core.policy import Policy, Role
from kvserving_connector.core.signing import Keys, verify_params


@dataclass
class FakeRequest:
    request_id: str = "r1"
    kv_transfer_params: Any = None
    prompt_token_ids: list[int] | None = field(default_factory=lambda: list(range(40)))
    extra_args: Any = None
    status: Any = field(default_factory=lambda: SimpleNamespace(name="FINISHED_LENGTH_CAPPED"))
    lora_request: Any = None
    abort_immediately: bool = False

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(extra_args=self.extra_args)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids or ())


def desk(role: Role, keys: Keys = KEYS, ranks: int = 1, clock: Callable[[], float] = lambda: NOW) -> Desk:
    return Desk(
        policy=lambda: Policy(role, REVISION, keys),
        clock=clock,
        lease_seconds=30,
        ranks=ranks,
        engine_id="engine-d",
    )


def prefilled(**changes: Any) -> dict[str, Any]:
    """What a prefill desk answers for the default request, after a JSON relay."""
    prefill = desk(Role.PREFILL)
    request = FakeRequest(request_id="p1", kv_transfer_params=dict(PROBE_PARAMS), **changes)
    prefill.judge(request)
    answer = prefill.finished(request, handoff(remote_request_id="p1"))
    relayed: dict[str, Any] = json.loads(json.dumps(answer))
    return relayed


def receipt_of(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer["kvserving_receipt"]
    return found


def test_what_prefill_signs_tells_its_lease_and_expires_before_it_by_a_heartbeat() -> None:
    params = prefilled()
    assert params["kvserving_lease"] == 30
    assert verify_params(params, keys=KEYS, revision=REVISION, now=NOW) is None
    assert params["kvserving_signature"].split(".")[2] == str(int(NOW) + 24)


def test_prefill_without_a_key_returns_no_parameters() -> None:
    prefill = desk(Role.PREFILL, keys=Keys())
    request = FakeRequest(kv_transfer_params=dict(PROBE_PARAMS))
    prefill.judge(request)
    assert request.kv_transfer_params is None
    held = desk(Role.PREFILL)
    held.judge(request := FakeRequest(kv_transfer_params=dict(PROBE_PARAMS)))
    held._policy = lambda: Policy(Role.PREFILL, REVISION, Keys())
    assert held.finished(request, handoff()) is None


def test_parameters_that_json_cannot_hold_are_counted_and_not_returned() -> None:
    prefill = desk(Role.PREFILL)
    request = FakeRequest(kv_transfer_params=dict(PROBE_PARAMS))
    prefill.judge(request)
    assert prefill.finished(request, handoff(new_key=b"bytes")) is None
    tally = prefill.drain()
    assert tally is not None
    assert (tally.refused, tally.signed) == (["malformed"], [])


def test_decode_acts_on_a_handoff_of_its_own_prompt_only() -> None:
    decode = desk(Role.DECODE)
    own = FakeRequest(kv_transfer_params=prefilled())
    decode.judge(own)
    assert own.kv_transfer_params is not None
    for other in (
        FakeRequest(request_id="r2", prompt_token_ids=[*range(39), 7]),
        FakeRequest(request_id="r3", lora_request=SimpleNamespace(lora_name="x")),
    ):
        other.kv_transfer_params = prefilled()
        decode.judge(other)
        assert other.kv_transfer_params is None
    tally = decode.drain()
    assert tally is not None
    assert tally.refused == ["foreign_prompt", "foreign_prompt"]


def test_a_handoff_is_taken_once() -> None:
    decode = desk(Role.DECODE)
    first = FakeRequest(kv_transfer_params=prefilled())
    decode.judge(first)
    decode.judge(first)
    assert first.kv_transfer_params is not None
    again = FakeRequest(request_id="r2", kv_transfer_params=prefilled())
    decode.judge(again)
    assert again.kv_transfer_params is None
    tally = decode.drain()
    assert tally is not None
    assert tally.refused == ["replayed"]


def test_taken_handoffs_are_forgotten_once_they_have_expired() -> None:
    now = [NOW]
    decode = desk(Role.DECODE, clock=lambda: now[0])
    decode.judge(FakeRequest(kv_transfer_params=prefilled()))
    assert len(decode._taken) == 1
    now[0] += 30 + 2 * 60
    late = FakeRequest(request_id="r2", kv_transfer_params=prefilled())
    decode.judge(late)
    assert late.kv_transfer_params is None
    tally = decode.drain()
    assert tally is not None
    assert tally.refused == ["expired"]
    decode._judge_first_use({"remote_engine_id": "e", "remote_request_id": "other"}, Role.DECODE, now[0])
    assert list(decode._taken) == [("e", "other")]


def test_a_request_that_vllm_rejected_still_frees_prefills_blocks() -> None:
    decode = desk(Role.DECODE)
    request = FakeRequest(kv_transfer_params=prefilled(), prompt_token_ids=[0], abort_immediately=True)
    decode.judge(request)
    assert request.kv_transfer_params is not None


@given(anything)
def test_no_unsigned_value_survives_in_the_scheduler(value: Any) -> None:
    for role in Role:
        request = FakeRequest(kv_transfer_params=value)
        desk(role).judge(request)
        assert request.kv_transfer_params is None or (role is Role.PREFILL and value.get("do_remote_decode") is True)


def test_parameters_are_judged_once_even_after_vllm_changed_them() -> None:
    decode = desk(Role.DECODE)
    request = FakeRequest(kv_transfer_params=prefilled())
    decode.judge(request)
    request.kv_transfer_params["do_remote_prefill"] = False
    request.kv_transfer_params["_remote_blocks_processed"] = True
    decode.judge(request)
    assert request.kv_transfer_params is not None
    request.kv_transfer_params = {"do_remote_prefill": True}
    decode.judge(request)
    assert request.kv_transfer_params is None


def served(ranks: int = 1, probe: bool = True, **facts: Any) -> tuple[Desk, FakeRequest]:
    decode = desk(Role.DECODE, ranks=ranks)
    request = FakeRequest(kv_transfer_params=prefilled(), extra_args=mark() if probe else None)
    decode.judge(request)
    decode.queried(request, 8)
    decode.allocated(request, 32)
    decode.allocated(request, 0)
    decode.reported({"r1": TransferFacts(**{"bytes": 100, "descriptors": 4, "seconds": 0.5, "reporters": 1, **facts})})
    return decode, request


def test_a_probe_gets_a_receipt_with_what_all_ranks_measured() -> None:
    decode, request = served(ranks=2)
    decode.reported({"r1": TransferFacts(bytes=50, descriptors=4, seconds=0.75, reporters=1)})
    assert receipt_of(decode.finished(request, None)) == {
        "version": 1,
        "role": "decode",
        "revision": REVISION,
        "consumer": "engine-d",
        "producer": "engine-p",
        "prompt_tokens": 40,
        "external_tokens": 32,
        "local_tokens": 8,
        "bytes": 150,
        "descriptors": 8,
        "seconds": 0.75,
        "transport": "nixl/UCX",
        "refused": None,
    }
    tally = decode.drain()
    assert tally is not None
    assert (tally.receipts, tally.tokens, tally.bytes) == ([1], [32], [150])
    assert not decode._handoffs


def test_a_request_without_a_mark_is_counted_and_gets_no_receipt() -> None:
    decode, request = served(probe=False)
    assert decode.finished(request, None) is None
    tally = decode.drain()
    assert tally is not None
    assert (tally.receipts, tally.tokens) == ([], [32])
    assert decode.drain() is None


def test_no_positive_receipt_while_a_rank_is_silent_or_failed_or_the_request_did_not_finish() -> None:
    silent, request = served(ranks=2)
    assert receipt_of(silent.finished(request, None))["external_tokens"] == 0
    failed, request = served(failed=True)
    assert receipt_of(failed.finished(request, None))["bytes"] == 0
    late, request = served()
    late.failed(["r1", "unknown"])
    assert receipt_of(late.finished(request, None))["external_tokens"] == 0
    aborted, request = served()
    request.status = SimpleNamespace(name="FINISHED_ERROR")
    assert receipt_of(aborted.finished(request, None))["external_tokens"] == 0
    reloaded, request = served()
    reloaded.queried(request, 0)
    assert receipt_of(reloaded.finished(request, None))["external_tokens"] == 0


def test_a_failed_load_is_counted_once_however_it_becomes_known() -> None:
    told, request = served(failed=True)
    told.failed(["r1"])
    told.finished(request, None)
    ended, other = served(reporters=0)
    other.status = SimpleNamespace(name="FINISHED_ERROR")
    ended.finished(other, None)
    unrelated, third = served()
    third.status = SimpleNamespace(name="FINISHED_ERROR")
    unrelated.finished(third, None)
    failures = [tally.failed for tally in (told.drain(), ended.drain(), unrelated.drain()) if tally is not None]
    assert failures == [[1], [1], []]


def test_a_probe_whose_parameters_are_gone_gets_a_receipt_that_says_why() -> None:
    decode = desk(Role.DECODE)
    stripped = FakeRequest(extra_args={**mark(), "kvserving_refused": "expired"})
    decode.judge(stripped)
    found = receipt_of(decode.finished(stripped, None))
    assert (found["refused"], found["producer"], found["external_tokens"]) == ("expired", None, 0)
    bypassed = FakeRequest(extra_args=mark(), kv_transfer_params=handoff())
    decode.judge(bypassed)
    assert receipt_of(decode.finished(bypassed, None))["refused"] == "unsigned"


def test_a_forged_mark_gives_no_receipt() -> None:
    decode = desk(Role.DECODE)
    for forged in ({"kvserving_probe": "v1.1.2.3"}, {"kvserving_probe": 5}, "text", None):
        request = FakeRequest(extra_args=forged)
        decode.judge(request)
        assert decode.finished(request, None) is None


def test_late_facts_of_a_finished_request_are_dropped() -> None:
    decode, request = served()
    decode.finished(request, None)
    decode.reported({"r1": TransferFacts(bytes=1, reporters=1)})
    decode.failed(["r1"])
    assert not decode._handoffs


def test_facts_of_ranks_merge_without_sharing_objects() -> None:
    one = {"a": TransferFacts(bytes=1, seconds=1.0, reporters=1)}
    two = {"a": TransferFacts(bytes=2, seconds=0.5, reporters=1, failed=True), "b": TransferFacts(bytes=9, reporters=1)}
    merged = merge_facts(one, two)
    assert merged["a"] == TransferFacts(bytes=3, seconds=1.0, reporters=2, failed=True)
    assert merged["b"] == two["b"]
    assert merged["b"] is not two["b"]
