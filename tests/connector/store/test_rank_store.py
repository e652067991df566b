"""One rank's side of L2 on real stores: what is there is found and loaded, by those who share it only."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.connector.store.rank_rig import KEYS, NAMESPACE, Held, Rank, name, rank
from tests.connector.store.servers import NO_CREDENTIALS, Server, wait_for

from kvserving_connector.core.planner import Group, GroupKind, HybridOffloadPlanner
from kvserving_connector.store.client import StoreClient
from kvserving_connector.store.filesystem import FileStore
from kvserving_connector.store.inventory import holdings
from kvserving_connector.store.open import open_store
from kvserving_connector.store.tally import Event

BLOCK_TOKENS = 16
Open = Callable[[], StoreClient]


@pytest.fixture(params=["files", "servers"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, start_server: Callable[..., Server]) -> Open:
    """Open a client of the one store of the test."""
    urls = [f"file://{tmp_path}/l2"] if request.param == "files" else [start_server().url, start_server().url]
    return lambda: open_store(urls, None, NO_CREDENTIALS)


def told(it: Rank, event: Event, usual: str) -> list[str]:
    """What was counted of the event for other reasons than the usual one."""
    it.count(event)
    return [
        f"{each} {label}: {number}" for (each, label), number in it.counted.items() if each is event and label != usual
    ]


def test_what_one_engines_rank_stored_another_engines_finds_and_loads(opened: Open) -> None:
    with rank(opened()) as first:
        assert first.found() == []
        assert first.put()
        assert not first.end().failed
        with rank(opened()) as second:
            assert second.found([*KEYS, bytes(36)[:-1] + b"x"]) == KEYS
            second.get()
            assert set(second.end().done) == set(KEYS)
            assert (second.slots[16:24] == first.slots[:8]).all()
            assert second.count(Event.HIT) == second.count(Event.READ) == 8
            assert second.count(Event.MISS, "absent") == 1
            assert second.store.pending(load=True) == second.store.pending(load=False) == 0


def test_ranks_share_nothing(opened: Open) -> None:
    with (
        rank(opened()) as first,
        rank(opened(), namespace=dataclasses.replace(NAMESPACE, identity={"rank": "1"})) as it,
    ):
        first.put()
        first.end()
        assert it.found() == []
        it.get()
        assert set(it.end().failed) == set(KEYS)


def test_t19_a_hole_ends_what_can_be_loaded(opened: Open) -> None:
    planner = HybridOffloadPlanner.make(
        [Group(GroupKind.FULL, BLOCK_TOKENS)], hash_block_tokens=BLOCK_TOKENS, max_model_len=1024
    )

    def tokens(it: Rank) -> int:
        there = it.found()
        return planner.prefix_tokens(lambda _, span: KEYS[span] in there, 8 * BLOCK_TOKENS + 1)

    with rank(opened()) as it:
        it.put()
        it.end()
        assert tokens(it) == 128
        it.client.delete(name(KEYS[3]), time.monotonic() + 5)
        assert it.found() == [*KEYS[:3], *KEYS[4:]]
        assert tokens(it) == 48


def test_t20_three_writers_and_a_reader_of_one_key_have_no_error_and_no_torn_read(opened: Open) -> None:
    size = 256 * 1024
    key = KEYS[:1]
    ended = time.monotonic() + 6.0
    problems: list[str] = []
    reads = [0]

    def write(index: int) -> None:
        with rank(opened(), slot_bytes=size) as it:
            it.slots[0] = index
            while time.monotonic() < ended:
                it.put(key)
                if it.end().failed:
                    problems.append("a store failed")
                # A store keeps what it has: without this the first body would be the only one.
                it.client.delete(name(key[0]), time.monotonic() + 5)
            problems.extend(told(it, Event.SKIP, "present"))

    def read() -> None:
        with rank(opened(), slot_bytes=size) as it:
            while time.monotonic() < ended:
                it.slots[16] = 255
                it.get(key)
                done = it.end().done
                body = set(np.unique(it.slots[16]).tolist())
                if done and (len(body) != 1 or 255 in body):
                    problems.append(f"torn: {body}")
                if not done and body != {255}:
                    problems.append("a failed load wrote its slot")
                reads[0] += len(done)
            problems.extend(told(it, Event.MISS, "absent"))

    threads = [threading.Thread(target=write, args=(index,)) for index in range(3)]
    threads.append(threading.Thread(target=read))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert reads[0] > 20


def test_look_ups_of_many_requests_are_answered_each_and_forgotten_ones_are_not(opened: Open) -> None:
    with rank(opened()) as it:
        it.put(KEYS[:5])
        it.end()
        for index in range(20):
            it.store.look_up(("request", index), KEYS[: index % 8])
        it.store.forget(("request", 3))
        it.store.forget("unknown")
        with pytest.raises(ValueError, match=r"^ticket: \('request', 4\)"):
            it.store.look_up(("request", 4), KEYS)
        answers: dict[Hashable, tuple[bool, ...]] = {}

        def all_there() -> bool:
            answers.update(it.store.found())
            return len(answers) >= 19

        wait_for(all_there)
        expected = [True] * 5 + [False] * 3
        assert answers == {("request", index): tuple(expected[: index % 8]) for index in range(20) if index != 3}
        assert not it.store._open
        assert not it.store._numbers


def test_a_ticket_that_was_forgotten_gets_the_answer_to_its_new_look_up(tmp_path: Path) -> None:
    client = Held(tmp_path / "l2")
    with rank(client) as it:
        it.put(KEYS[:2])
        it.end()
        client.held.add("exists")
        it.store.look_up("request", KEYS[:1])
        it.store.forget("request")
        it.store.look_up("request", KEYS)
        client.held.clear()
        client.release.set()
        assert it.answer() == (True, True, *[False] * 6)
        it.store.look_up("request", [])
        it.store.forget("request")
        assert it.store.found() == []


def test_a_rank_says_what_its_namespace_is_for(tmp_path: Path) -> None:
    client = FileStore(tmp_path / "l2")
    with rank(client) as it:
        it.put(KEYS[:1])
        it.end()
        (holding,) = holdings(client, time.monotonic() + 10)
        assert holding.about is not None
        assert holding.about["identity"] == {"rank": "0"}


def test_draining_waits_for_loads_and_stores(opened: Open) -> None:
    with rank(opened()) as it:
        it.put()
        it.store.drain()
        (finished,) = it.store.finished()
        assert not finished.failed


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"load_timeout_s": 0}, "^load_timeout_s: 0"),
        ({"load_timeout_s": float("nan")}, "^load_timeout_s: nan"),
        ({"max_inflight": 0}, "^max_inflight: 0"),
    ],
    ids=str,
)
def test_wrong_settings_name_the_argument(tmp_path: Path, setting: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Rank(FileStore(tmp_path), **setting)
