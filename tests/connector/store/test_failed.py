from __future__ import annotations

from kvserving_connector.store.client import Reason
from kvserving_connector.store.failed import FailedKeys
from kvserving_connector.store.tally import Event, Tally


def test_failed_keys_expire_and_are_forgotten_when_written_again() -> None:
    now = 0.0
    failed = FailedKeys(seconds=10, clock=lambda: now)
    failed.add([b"a", b"b"])
    failed.discard([b"b", b"c"])
    assert b"a" in failed
    assert b"b" not in failed
    now = 9.9
    assert b"a" in failed
    now = 10.0
    assert b"a" not in failed
    assert len(failed) == 0


def test_failed_keys_are_bounded_and_the_oldest_go_first() -> None:
    failed = FailedKeys(limit=100)
    for index in range(1000):
        failed.add([b"%d" % index])
        failed.add([b"0"])
    assert len(failed) == 100
    assert b"0" in failed
    assert b"999" in failed
    assert b"900" not in failed


def test_a_tally_gives_each_count_once_and_plain_labels() -> None:
    tally = Tally()
    tally.count(Event.MISS, Reason.ABSENT, 2)
    tally.count(Event.MISS, "absent")
    taken = tally.take()
    assert taken == {(Event.MISS, "absent"): 3}
    assert all(type(label) is str for _, label in taken)
    assert not tally.take()
