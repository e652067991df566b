from __future__ import annotations

import pytest

from kvserving_operator.reasons import Reason
from kvserving_operator.recovery.pairs import EMPTY, Outcome, Records, hear, judge, retain

GOOD, BAD = Reason.VERIFIED, Reason.TRANSFER_FAILED
Seen = dict[str, Reason]


def after(*verifications: Seen, every: float = 50.0, start: Records = EMPTY) -> Records:
    """Verifications of pairs such as ``p1d2``, one after another."""
    records = start
    for number, seen in enumerate(verifications):
        outcomes = [Outcome((pair[:2], pair[2:]), reason) for pair, reason in seen.items()]
        records = hear(records, outcomes, number * every)
    return records


def at_fault(records: Records, prefills: str = "p1 p2", decodes: str = "d1 d2", **how: bool) -> dict[str, bool]:
    """Pods to restart, and whether they serve nobody."""
    found = judge(records, {n: f"pod-{n}" for n in prefills.split()}, {n: f"pod-{n}" for n in decodes.split()}, **how)
    assert all(finding.reason is Reason.PEER_STALE for finding in found)
    return {finding.pod.removeprefix("pod-"): finding.idle for finding in found}


def test_a_pair_that_worked_and_fails_three_times_is_broken_and_decode_holds_the_old_peer() -> None:
    works: Seen = {"p1d1": GOOD}
    fails: Seen = {"p1d1": BAD}
    assert at_fault(after(works, fails, fails), "p1", "d1") == {}
    assert at_fault(after(works, fails, fails, fails), "p1", "d1") == {"d1": True}


def test_the_finding_names_both() -> None:
    [found] = judge(after({"p1d1": GOOD}, *[{"p1d1": BAD}] * 3), {"p1": "a"}, {"d1": "b"})
    assert found.pod == "b"
    assert found.sentence == "cannot fetch from a, verification after verification"


def test_failures_in_quick_succession_are_not_enough() -> None:
    assert at_fault(after({"p1d1": GOOD}, *[{"p1d1": BAD}] * 9, every=10), "p1", "d1") == {}


def test_a_success_in_between_begins_anew() -> None:
    fails: Seen = {"p1d1": BAD}
    assert at_fault(after({"p1d1": GOOD}, fails, fails, {"p1d1": GOOD}, fails, fails), "p1", "d1") == {}


@pytest.mark.parametrize(
    "reason", [Reason.RECOMPUTING_KV, Reason.HANDSHAKE_INCOMPATIBLE, Reason.PROBE_FAILED, Reason.ENGINE_UNREACHABLE]
)
def test_what_no_restart_helps_leads_to_none(reason: Reason) -> None:
    assert at_fault(after({"p1d1": GOOD}, *[{"p1d1": reason}] * 9), "p1", "d1") == {}


def test_kv_of_another_producer_is_a_stale_peer() -> None:
    assert at_fault(after({"p1d1": GOOD}, *[{"p1d1": Reason.PEER_STALE}] * 3), "p1", "d1") == {"d1": True}


def test_engines_that_never_transferred_are_left_to_who_set_them_up() -> None:
    assert at_fault(after(*[{"p1d1": BAD}] * 9), "p1", "d1") == {}


def test_with_a_prefill_on_a_known_address_decode_is_restarted() -> None:
    # p2 has taken the place of p1.
    records = after(*[{"p2d1": BAD}] * 3, start=retain(after({"p1d1": GOOD}), {"p2", "d1"}))
    assert at_fault(records, "p2", "d1") == {"d1": True}


def test_where_decode_was_just_restarted_it_is_prefill() -> None:
    records = after(*[{"p1d2": BAD}] * 3, start=retain(after({"p1d1": GOOD}), {"p1", "d2"}))
    assert at_fault(records, "p1", "d2") == {"p1": True}


def test_where_decode_works_with_others_and_prefill_with_none_it_is_prefill() -> None:
    both: Seen = {"p1d1": GOOD, "p2d1": GOOD}
    broken: Seen = {"p1d1": GOOD, "p2d1": BAD}
    assert at_fault(after(both, broken, broken, broken), decodes="d1") == {"p2": True}


def test_where_both_work_with_others_it_is_decode_and_it_serves() -> None:
    crossed: Seen = {"p1d1": BAD, "p1d2": GOOD, "p2d1": GOOD}
    assert at_fault(after(*[crossed] * 3)) == {"d1": False}


def test_a_decode_whose_other_pairs_nobody_tried_may_serve() -> None:
    broken: Seen = {"p1d1": GOOD, "p2d2": BAD}
    assert at_fault(after({"p2d2": GOOD}, broken, broken, broken)) == {"d2": False}


def test_a_decode_that_recomputes_serves() -> None:
    records = after({"p1d1": GOOD}, *[{"p1d1": BAD}] * 3)
    assert at_fault(records, "p1", "d1", recomputes=True) == {"d1": False}


def test_what_is_known_of_a_process_goes_with_it() -> None:
    records = after({"p1d1": GOOD}, *[{"p1d1": BAD}] * 3)
    gone = retain(records, {"p1"})
    assert gone.pairs == {}
    assert gone.worked == {"p1"}
    assert at_fault(records, "p1", "d2") == {}
