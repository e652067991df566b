"""What a store promises (see StoreClient), asked of every kind that an address can name."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.connector.store.servers import address_of, expect, reason, soon, wait_for

from kvserving_connector.store.address import Credentials
from kvserving_connector.store.client import Part, Reason, StoreFault
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.inventory import ListedStore
from kvserving_connector.store.open import KINDS, Kind, open_store

NAMESPACE = bytes(range(32))
KEYS = [object_name(NAMESPACE, index.to_bytes(8, "big")) for index in range(200)]
KEY, OTHER = KEYS[:2]
PREFIX = f"kv1-{NAMESPACE[:16].hex()}-"
BODY = os.urandom(100_000)
BOUNDED = [kind for kind in KINDS if kind.bounded]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.schemes[0])
def store(request: pytest.FixtureRequest, servers: ExitStack, tmp_path: Path) -> Iterator[ListedStore]:
    store = open_store([address_of(request.param, servers, tmp_path)], 2**30, Credentials())
    yield store
    store.close()


def read(store: ListedStore, key: str = KEY, room: int = len(BODY) + 64, seconds: float = 5.0) -> bytes:
    buffer = memoryview(bytearray(room))
    return bytes(buffer[: store.get(key, buffer, soon(seconds))])


def test_a_store_that_was_only_opened_is_empty_and_nothing_was_made_for_it(store: ListedStore, tmp_path: Path) -> None:
    assert store.exists([KEY], soon()) == [False]
    assert reason(lambda: read(store)) is Reason.ABSENT
    store.delete(KEY, soon())
    assert not [key for batch in store.listing("", soon()) for key, _ in batch]
    store.usage(soon())
    assert not (tmp_path / "l2").exists()


def test_an_object_comes_back_as_it_was_put_and_stays(store: ListedStore) -> None:
    assert store.put(KEY, [BODY[:7], memoryview(BODY)[7:]], soon())
    assert read(store) == read(store, room=len(BODY)) == BODY
    assert not store.put(KEY, [b"another"], soon())
    assert read(store) == BODY


def test_an_object_of_some_mib_comes_back_whole(store: ListedStore) -> None:
    body = os.urandom(5 * 2**20 + 1)
    parts: list[Part] = [body[:1], memoryview(body)[1 : 3 * 2**20], memoryview(body)[3 * 2**20 :]]
    assert store.put(KEY, parts, soon(30))
    assert read(store, room=len(body)) == read(store, room=len(body) + 64) == body
    assert sum(size for batch in store.listing(PREFIX, soon()) for _, size in batch) >= len(body)


def test_what_was_put_is_kept_although_its_buffer_is_used_again(store: ListedStore) -> None:
    buffer = bytearray(BODY)
    store.put(KEY, [memoryview(buffer)], soon())
    buffer[:] = bytes(len(buffer))
    assert read(store) == BODY


def test_keys_are_asked_for_in_one_batch(store: ListedStore) -> None:
    for key in KEYS[::3]:
        store.put(key, [b"x"], soon())
    assert store.exists(KEYS, soon()) == [index % 3 == 0 for index in range(len(KEYS))]
    assert store.exists([], soon()) == []


def test_an_object_that_is_absent_or_too_long_is_told_and_the_next_read_is_right(store: ListedStore) -> None:
    store.put(KEY, [BODY], soon())
    assert reason(lambda: read(store, OTHER)) is Reason.ABSENT
    assert reason(lambda: read(store, room=100)) is Reason.LENGTH
    assert read(store) == BODY


def test_a_deleted_object_is_gone_and_an_absent_one_is_no_fault(store: ListedStore) -> None:
    store.put(KEY, [BODY], soon())
    store.put(OTHER, [b"other"], soon())
    store.delete(KEY, soon())
    store.delete(KEY, soon())
    assert store.exists([KEY, OTHER], soon()) == [False, True]
    assert store.put(KEY, [b"new"], soon())
    assert read(store) == b"new"


def test_a_listing_has_each_object_of_its_prefix_and_its_bytes(store: ListedStore) -> None:
    bodies = {key: os.urandom(10 + index) for index, key in enumerate(KEYS)}
    for key, body in bodies.items():
        store.put(key, [body], soon())
    store.put(object_name(bytes(32), b"another namespace"), [b"x"], soon())
    found = {key: size for batch in store.listing(PREFIX, soon()) for key, size in batch}
    assert found.keys() == bodies.keys()
    assert all(size >= len(bodies[key]) for key, size in found.items())


def test_one_chunk_in_two_namespaces_is_two_objects(store: ListedStore) -> None:
    # Such names differ in their first digit, in their last one before the chunk, or in the chunk alone.
    names = [object_name(namespace, b"chunk") for namespace in (bytes(16), b"\x10" + bytes(15), bytes(15) + b"\x01")]
    names.append(object_name(bytes(16), b"chunl"))
    for name in names:
        assert store.put(name, [name.encode()], soon()) is True
    assert [read(store, name) for name in names] == [name.encode() for name in names]
    store.delete(names[0], soon())
    assert store.exists(names, soon()) == [False, True, True, True]
    purged = names[1].rpartition("-")[0]
    assert [key for batch in store.listing(purged, soon()) for key, _ in batch] == [names[1]]


def test_usage_grows_by_what_is_put(store: ListedStore) -> None:
    before = store.usage(soon()).used_bytes
    for key in KEYS[:20]:
        store.put(key, [BODY], soon())
    after = store.usage(soon())
    assert after.used_bytes >= before + 20 * len(BODY)
    assert after.limit_bytes is None or after.limit_bytes >= after.used_bytes


def test_a_reader_sees_all_of_an_object_or_nothing_while_others_write(store: ListedStore) -> None:
    bodies = {key: os.urandom(50_000) for key in KEYS[:40]}
    wrong: list[str] = []
    read_at_all = threading.Semaphore(0)

    def work(offset: int) -> None:
        for step in range(40):
            key = KEYS[(offset * 7 + step) % len(bodies)]
            try:
                store.put(key, [bodies[key][:100], bodies[key][100:]], soon())
                found = read(store, key)
            except StoreFault as fault:
                if fault.reason is not Reason.ABSENT:
                    wrong.append(f"{key}: {fault}")
                continue
            read_at_all.release()
            if found != bodies[key]:
                wrong.append(key)
            if step % 5 == offset % 5:
                store.delete(key, soon())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert read_at_all.acquire(blocking=False)


def test_a_deadline_that_has_passed_is_told(store: ListedStore) -> None:
    store.put(KEY, [BODY], soon())
    assert reason(lambda: store.put(OTHER, [BODY], soon(-1))) is Reason.TIMEOUT
    assert reason(lambda: store.get(KEY, memoryview(bytearray(len(BODY))), soon(-1))) is Reason.TIMEOUT
    assert reason(lambda: store.delete(KEY, soon(-1))) is Reason.TIMEOUT
    assert store.exists([KEY], soon(-1)) == [Reason.TIMEOUT]
    assert store.exists([KEY, OTHER], soon()) == [True, False]


def test_a_closed_store_says_so(store: ListedStore) -> None:
    store.put(KEY, [BODY], soon())
    store.close()
    store.close()
    assert store.exists([KEY], soon()) == [Reason.CLOSED]
    for operation in (
        lambda: read(store),
        lambda: store.put(OTHER, [BODY], soon()),
        lambda: store.delete(KEY, soon()),
        lambda: store.usage(soon()),
        lambda: list(store.listing("kv", soon())),
    ):
        assert reason(operation) is Reason.CLOSED


@pytest.mark.parametrize("kind", BOUNDED, ids=lambda kind: kind.example)
def test_a_store_that_takes_a_bound_evicts_and_is_never_above_it_by_more_than_an_object(
    kind: Kind, servers: ExitStack, tmp_path: Path
) -> None:
    limit = 40 * len(BODY)
    store = open_store([address_of(kind, servers, tmp_path)], limit, Credentials())

    def put(key: str) -> bool:
        try:
            return store.put(key, [BODY], soon())
        except StoreFault as fault:
            # Eviction may need a moment; until then the object is skipped.
            expect(fault, Reason.FULL, Reason.BUSY)
            return False

    for key in KEYS[:100]:
        wait_for(partial(put, key))
        usage = store.usage(soon())
        assert usage.limit_bytes == limit
        assert usage.used_bytes <= limit + len(BODY)
    there = store.exists(KEYS[:100], soon())
    assert there[-1] is True
    assert there[0] is False
    assert reason(lambda: store.put(OTHER, [bytes(limit + 1)], soon())) is Reason.FULL
    store.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.bounded], ids=lambda kind: kind.example)
def test_a_store_that_takes_a_bound_is_one_of_a_bounded_kind(kind: Kind, servers: ExitStack, tmp_path: Path) -> None:
    store = open_store([address_of(kind, servers, tmp_path)], 987_654_321, Credentials())
    assert store.usage(soon()).limit_bytes != 987_654_321, (
        "the store takes a bound: say bounded=True in its line of KINDS"
    )
    store.close()


@pytest.mark.parametrize("kind", BOUNDED, ids=lambda kind: kind.example)
def test_an_address_may_say_the_bound_and_what_is_given_beside_it_wins(
    kind: Kind, servers: ExitStack, tmp_path: Path
) -> None:
    url = f"{address_of(kind, servers, tmp_path)}?bytes=5000000"
    for given, limit in ((None, 5_000_000), (7_000_000, 7_000_000)):
        store = open_store([url], given, Credentials())
        assert store.usage(soon()).limit_bytes == limit
        store.close()
