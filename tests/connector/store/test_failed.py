from __future__ import annotations

import logging

import pytest

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


def test_a_store_that_fails_is_told_in_the_log_once_for_each_reason_and_again_after_a_while_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    tally = Tally(clock=lambda: now)
    with caplog.at_level(logging.WARNING, "vllm.kvserving"):
        for _ in range(500):
            tally.count(Event.SKIP, Reason.DISK_FULL, detail="No space left on device in /var/lib/kv")
            tally.count(Event.SKIP, Reason.FULL)
            tally.count(Event.MISS, Reason.CHECKSUM)
            for reason in (Reason.ABSENT, Reason.BUSY, Reason.PAUSED, Reason.PRESENT, Reason.CLOSED, Reason.TIMEOUT):
                tally.count(Event.SKIP, reason)
                tally.count(Event.MISS, str(reason))
            now += 1
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 3, said
        assert "could not be written to the store (spec.cache.l2): disk-full: No space left on device" in said[0]
        assert "store_skipped_chunks_total" in said[0]
        assert "could not be read from the store (spec.cache.l2): checksum." in said[2]
        now += 601
        tally.count(Event.SKIP, Reason.DISK_FULL)
        assert len(caplog.records) == 4
