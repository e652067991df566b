"""Until when a read is certain to be of its own prompt's KV."""

from __future__ import annotations

import pytest

from kvserving_connector.core.leases import ARRIVAL_SECONDS, Leases

LEASE = 30
PROLONGED = 20 - ARRIVAL_SECONDS


def test_without_a_heartbeat_it_is_as_long_as_the_handoff_could_be_taken() -> None:
    assert Leases(LEASE).certain_until("r1", ["a"], 124.0) == 124.0


def test_a_heartbeat_that_was_sent_before_prolongs_it_by_two_thirds_less_its_way() -> None:
    leases = Leases(LEASE)
    leases.sent("a", b"HB:r0,r1", 120.0)
    assert leases.certain_until("r1", ["a"], 124.0) == 120.0 + PROLONGED
    assert leases.certain_until("r1", ["a"], 150.0) == 150.0
    assert leases.certain_until("r1", ["a"], None) == 120.0 + PROLONGED


@pytest.mark.parametrize("message", [b"r1:1", b"HB:r2,r11", b"HB:", b"\xff\xfe r1"])
def test_other_messages_and_those_of_other_requests_prolong_nothing(message: bytes) -> None:
    leases = Leases(LEASE)
    leases.sent("a", message, 120.0)
    assert leases.certain_until("r1", ["a"], 124.0) == 124.0
    assert leases.certain_until("r1", ["a"], None) is None


def test_the_last_heartbeat_of_a_peer_counts_and_a_peer_that_is_gone_is_forgotten() -> None:
    leases = Leases(LEASE)
    leases.sent("a", b"HB:r1", 120.0)
    leases.sent("a", b"HB:r1", 125.0)
    assert leases.certain_until("r1", ["a"], None) == 125.0 + PROLONGED
    leases.sent("a", b"HB:r2", 130.0)
    assert leases.certain_until("r1", ["a"], None) is None
    leases.forget("a")
    assert leases.certain_until("r2", ["a"], None) is None


def test_of_several_ranks_the_first_lease_to_end_decides() -> None:
    leases = Leases(LEASE)
    leases.sent("a", b"HB:r1", 120.0)
    leases.sent("b", b"HB:r1", 121.0)
    assert leases.certain_until("r1", ["a", "b"], None) == 120.0 + PROLONGED
    assert leases.certain_until("r1", ["a", "b", "c"], None) is None
    assert leases.certain_until("r1", ["a", "c"], 100.0) == 100.0
    assert leases.certain_until("r1", [], 100.0) is None
