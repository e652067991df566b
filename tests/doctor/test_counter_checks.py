"""What engines counted: what a service that is well may count, and what is told as a fault."""

from __future__ import annotations

from tests.doctor.world import found, healthy, with_series

FACTS = healthy()
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


def test_few_leases_that_expired_are_no_fault_and_many_are() -> None:
    assert found(with_series(FACTS, "prefill", f"{EXPIRED} 18")) == {}
    told = found(with_series(FACTS, "prefill", f"{EXPIRED} 19"))["leases-expired"]
    assert "KV of 19 requests of 900 was never fetched" in told.what
    assert "never falls" in told.why
    assert told.fix.startswith("look again after some requests whether it grows")


def test_leases_that_expired_are_told_where_the_number_of_requests_is_not_known() -> None:
    told = found(with_series(FACTS, "prefill", f"{EXPIRED} 1", drop="request_success"))["leases-expired"]
    assert "since the engine started, KV of 1 request was never fetched" in told.what
