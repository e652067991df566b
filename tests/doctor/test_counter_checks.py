"""What engines counted: what a service that is well may count, and what is told as a fault."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tests.doctor.world import found, healthy, with_series

import kvserving_operator
from kvserving_operator.doctor.checks import counters
from kvserving_operator.doctor.facts import Disk

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


SKIPPED = 'kvserving:store_skipped_chunks_total{reason="%s"}'


def test_only_the_reasons_at_hand_are_told_how_to_mend() -> None:
    told = found(with_series(FACTS, "prefill", f"{SKIPPED % 'full'} 118\n{SKIPPED % 'busy'} 3"))["store-fails"]
    assert told.what == "chunks could not be written: full 118"
    assert "spec.cache.l2.size" in told.fix
    assert "password" not in told.fix
    assert "unreachable" not in told.fix


def test_a_full_disk_is_told_with_its_folder_and_not_by_the_size_of_the_object() -> None:
    facts = with_series(FACTS, "prefill", f"{SKIPPED % 'disk-full'} 118")
    assert "larger volume" in found(facts)["store-fails"].fix
    assert facts.live is not None
    live = replace(facts.live, disk=Disk("/claims/lap2-l2", 40 * 2**20, 2**20))
    told = found(replace(facts, live=live))["store-fails"]
    assert "/claims/lap2-l2 has 1Mi of 40Mi left: free some of that disk" in told.fix
    assert "spec.cache.l2.size does not help" in told.fix


def test_every_reason_of_the_connector_that_is_a_fault_has_a_way_out() -> None:
    source = Path(kvserving_operator.__file__).parents[3] / "connector/src/kvserving_connector/store/client.py"
    reasons = set(re.findall(r'^    [A-Z_]+ = "([a-z-]+)"$', source.read_text(), re.MULTILINE))
    assert "disk-full" in reasons
    assert reasons == counters.HARMLESS | set(counters.STORE_FIXES)
