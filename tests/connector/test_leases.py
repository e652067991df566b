"""Until when a read is certain to be of its own prompt's KV."""

from __future__ import annotations

import pytest

from kvserving_connector.core.leases import ARRIVAL_SECONDS, Leases, usable_seconds

LEASE = 30
TAKEN_UNTIL = 124.0
OVER = 130.0
"""The lease is a sixth and a second longer than the handoff could be taken."""
PROLONGED = 20 - ARRIVAL_SECONDS


@pytest.fixture
def leases() -> Leases:
    return Leases(LEASE)


def certain(leases: Leases, *peers: str, lease: int = LEASE) -> float:
    return leases.certain_until("r1", peers or ("a",), TAKEN_UNTIL, lease)


@pytest.mark.parametrize(("lease", "usable"), [(1, 1), (2, 1), (3, 2), (6, 4), (10, 8), (30, 24), (600, 499)])
def test_a_handoff_is_usable_until_a_heartbeat_before_the_end_of_its_lease(lease: int, usable: int) -> None:
    assert usable_seconds(lease) == usable
    assert usable <= lease


def test_without_a_heartbeat_it_is_as_long_as_the_handoff_could_be_taken(leases: Leases) -> None:
    assert certain(leases) == TAKEN_UNTIL
    assert leases.certain_until("r1", [], TAKEN_UNTIL, LEASE) == TAKEN_UNTIL


def test_a_heartbeat_that_was_sent_before_prolongs_it_by_two_thirds_less_its_way(leases: Leases) -> None:
    leases.sent("a", b"HB:r0,r1", 120.0)
    assert certain(leases) == 120.0 + PROLONGED
    assert leases.certain_until("r1", ["a"], 150.0, LEASE) == 150.0


@pytest.mark.parametrize("message", [b"r1:1", b"r1", b"r0,HB:,r1", b"HB:r2,r11", b"HB:", b"\xff\xfe r1"])
def test_other_messages_and_those_of_other_requests_prolong_nothing(leases: Leases, message: bytes) -> None:
    leases.sent("a", message, 120.0)
    assert certain(leases) == TAKEN_UNTIL


def test_heartbeats_count_while_each_arrives_in_time_of_the_one_before(leases: Leases) -> None:
    for moment in (101.0, 120.0, 139.0, 158.0):
        leases.sent("a", b"HB:r1", moment)
    assert certain(leases) == 158.0 + PROLONGED


def test_a_lease_that_was_over_before_a_heartbeat_arrived_stays_over(leases: Leases) -> None:
    leases.sent("a", b"HB:r1", 101.0)
    leases.sent("a", b"HB:r1", 101.0 + PROLONGED + 0.1)
    leases.sent("a", b"HB:r1", 125.0)
    assert certain(leases) == TAKEN_UNTIL


def test_the_first_heartbeat_must_arrive_before_the_lease_is_over(leases: Leases) -> None:
    leases.sent("a", b"HB:r1", OVER - ARRIVAL_SECONDS)
    leases.sent("b", b"HB:r1", OVER - ARRIVAL_SECONDS + 0.1)
    assert certain(leases, "a") == OVER - ARRIVAL_SECONDS + PROLONGED
    assert certain(leases, "b") == TAKEN_UNTIL


def test_a_request_that_is_left_out_of_a_heartbeat_begins_anew(leases: Leases) -> None:
    leases.sent("a", b"HB:r1", 110.0)
    leases.sent("a", b"HB:r2", 112.0)
    assert certain(leases) == TAKEN_UNTIL
    leases.sent("a", b"HB:r1,r2", 114.0)
    assert certain(leases) == 114.0 + PROLONGED


def test_a_peer_that_is_gone_is_forgotten(leases: Leases) -> None:
    leases.began("x", ["a"])
    leases.sent("b", b"HB:r1", 120.0)
    leases.forget("a")
    leases.forget("b")
    leases.forget("never met")
    leases.ended("x", ["a"], 121.0)
    assert certain(leases, "a") == certain(leases, "b") == TAKEN_UNTIL
    leases.sent("a", b"HB:r1", 122.0)
    assert certain(leases, "a") == 122.0 + PROLONGED


def test_of_several_ranks_the_first_lease_to_end_decides(leases: Leases) -> None:
    leases.sent("a", b"HB:r1", 120.0)
    leases.sent("b", b"HB:r1", 121.0)
    assert certain(leases, "a", "b") == certain(leases, "b", "a") == 120.0 + PROLONGED
    assert certain(leases, "a", "c") == TAKEN_UNTIL


def test_a_heartbeat_behind_reads_counts_when_all_of_them_have_ended(leases: Leases) -> None:
    leases.began("x", ["a", "b"])
    leases.began("y", ["a"])
    leases.sent("a", b"HB:r1", 110.0)
    leases.began("z", ["a"])
    leases.ended("x", ["a", "b"], 111.0)
    assert certain(leases) == TAKEN_UNTIL
    leases.ended("y", ["a"], 112.0)
    assert certain(leases) == 110.0 + PROLONGED


@pytest.mark.parametrize(("ended", "until"), [(OVER - 1, 120.0 + PROLONGED), (OVER - 0.9, TAKEN_UNTIL)])
def test_a_heartbeat_behind_a_read_arrives_after_it(leases: Leases, ended: float, until: float) -> None:
    leases.began("x", ["a"])
    leases.sent("a", b"HB:r1", 115.0)
    leases.sent("a", b"HB:r1", 120.0)
    leases.ended("x", ["a"], ended)
    assert certain(leases) == until


def test_a_heartbeat_after_the_reads_waits_for_nothing(leases: Leases) -> None:
    leases.began("x", ["a"])
    leases.ended("x", ["a"], 105.0)
    leases.sent("a", b"HB:r1", 120.0)
    assert certain(leases) == 120.0 + PROLONGED
    leases.began("y", ["a"])
    leases.ended("y", ["a"], 150.0)
    assert certain(leases) == 120.0 + PROLONGED


def test_behind_a_read_that_never_ends_no_more_is_kept_than_a_lease_of_heartbeats(leases: Leases) -> None:
    leases.began("x", ["a"])
    for moment in range(100, 1000, 5):
        leases.sent("a", b"HB:r1", float(moment))
    assert [heartbeat.sent for heartbeat in leases._peers["a"].waiting] == [965, 970, 975, 980, 985, 990, 995]
    leases.ended("x", ["a"], 1000.0)
    assert certain(leases) == TAKEN_UNTIL


def test_the_lease_that_counts_is_prefills(leases: Leases) -> None:
    leases.sent("a", b"HB:r1", 121.0)
    assert certain(leases, lease=10) == 121.0 + 6 - ARRIVAL_SECONDS
    leases.sent("a", b"HB:r1", 126.0)
    assert certain(leases, lease=10) == 126.0 + 6 - ARRIVAL_SECONDS
    leases.sent("a", b"HB:r1", 131.1)
    assert certain(leases, lease=10) == TAKEN_UNTIL
    assert certain(leases) == 131.1 + PROLONGED
    leases.sent("b", b"HB:r1", 125.1)
    assert certain(leases, "b", lease=10) == TAKEN_UNTIL
    assert certain(leases, "b") == 125.1 + PROLONGED


@pytest.mark.parametrize(("seconds", "enough"), [(6.5, True), (9.0, False)])
def test_four_times_the_longest_read_and_some_seconds_are_enough_for_two_of_them(
    leases: Leases, seconds: float, enough: bool
) -> None:
    """Heartbeats go every sixth of the lease. The first read begins before one is due, the second before its end."""
    for moment in (105.0, 110.0, 115.0, 120.0):
        leases.sent("a", b"HB:r1", moment)
    leases.began("other", ["a"])
    for moment in (125.0, 130.0):
        leases.sent("a", b"HB:r1", moment)
    begins = 124.9 + seconds
    assert (certain(leases) >= begins + seconds) is enough
