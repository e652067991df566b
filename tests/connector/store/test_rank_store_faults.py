"""What a store does wrong, or not at all, to one rank: a miss or a skip, and nobody waits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.connector.store.rank_rig import KEYS, Held, name, rank
from tests.connector.store.servers import NO_CREDENTIALS, Server, wait_for

from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.open import open_store
from kvserving_connector.store.tally import Event


def test_t21_a_load_that_outlives_its_deadline_writes_no_slot_that_is_used_again(tmp_path: Path) -> None:
    client = Held(tmp_path / "l2")
    with rank(client, load_timeout_s=0.3) as it:
        it.put()
        it.end()
        client.held.add("get")
        began = time.monotonic()
        it.get(KEYS[:4])
        given_up = it.end()
        assert time.monotonic() - began < 10
        assert given_up.timed_out
        assert set(given_up.failed) == set(KEYS[:4])
        it.slots[16:20] = 7
        for _ in range(4):
            assert client.entered.acquire(timeout=5)
        client.held.clear()
        client.release.set()
        # Each reader has to leave the late read before it takes one of these.
        it.get(KEYS[4:] * 3, first=20)
        it.store.drain()
        assert (it.slots[16:20] == 7).all()
        assert it.count(Event.TIMEOUT, "load") == 1
        assert it.count(Event.MISS, "timeout") == 4


def test_a_look_up_that_hangs_counts_as_nothing_and_its_late_answer_is_ignored(tmp_path: Path) -> None:
    client = Held(tmp_path / "l2", "exists")
    with rank(client, probe_seconds=0.2) as it:
        it.put()
        it.end()
        began = time.monotonic()
        assert it.found() == []
        assert 0.2 <= time.monotonic() - began < 10
        assert it.count(Event.TIMEOUT, "lookup") == 1
        assert it.count(Event.MISS, "timeout") == 8
        # Nobody else waits for it, the same request included.
        assert it.found(KEYS[:2]) == []
        assert it.count(Event.MISS, "paused") == 2
        client.held.clear()
        client.release.set()
        wait_for(lambda: it.store._lookups._answers.qsize() == 1)
        assert it.store.found() == []
        assert it.count(Event.HIT) == 0
        until = it.store._gate.pauses["lookup"].until
        time.sleep(max(0.0, until - time.monotonic()))
        # What was given up is not asked for at once; the store delivers something, so that it is.
        assert it.found(KEYS[:1]) == []
        it.put([b"another"])
        it.end()
        assert it.found() == KEYS


def test_an_object_that_failed_counts_as_absent_until_it_was_written_again(tmp_path: Path) -> None:
    with rank(FileStore(tmp_path / "l2")) as it:
        it.put()
        it.end()
        (path,) = (tmp_path / "l2").rglob(name(KEYS[2]))
        os.truncate(path, 100)
        it.get()
        assert it.end().wrong == (KEYS[2],)
        assert it.count(Event.MISS, "truncated") == 1
        assert it.found() == [*KEYS[:2], *KEYS[3:]]
        assert it.count(Event.MISS, "remembered") == 1
        it.put(KEYS[2:3], first=2)
        it.end()
        assert it.found() == KEYS


def test_look_ups_find_nothing_while_enough_is_loading(tmp_path: Path) -> None:
    client = Held(tmp_path / "l2")
    with rank(client, max_inflight=4) as it:
        it.put()
        it.end()
        client.held.add("get")
        it.get(KEYS[:4])
        assert it.found() == []
        assert it.count(Event.MISS, "busy") == 8
        client.held.clear()
        client.release.set()
        it.end()
        assert it.found() == KEYS


def test_stores_that_would_pin_more_than_half_of_the_slots_are_refused(tmp_path: Path) -> None:
    client = Held(tmp_path / "l2", "put")
    with rank(client, slots=12) as it:
        assert it.put(KEYS[:6])
        assert not it.put(KEYS[6:])
        assert it.count(Event.SKIP, "busy") == 2
        assert it.store.pending(load=False) == 6
        client.held.clear()
        client.release.set()
        assert set(it.end().done) == set(KEYS[:6])
        assert it.put(KEYS[6:])
        assert set(it.end().done) == set(KEYS[6:])


def test_a_store_that_is_not_there_is_a_miss_and_a_skip_and_holds_nobody_up(
    start_server: Callable[..., Server],
) -> None:
    server = start_server()
    server.kill()
    with rank(open_store([server.url], None, NO_CREDENTIALS)) as it:
        began = time.monotonic()
        assert it.found() == []
        it.put()
        assert set(it.end().failed) == set(KEYS)
        assert time.monotonic() - began < 10
        assert it.count(Event.MISS, "unreachable") == 8
        assert it.count(Event.SKIP, "unreachable") == 8
        assert not it.store._gate.paused(time.monotonic())
