"""The client against a real cluster of three servers."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.connector.store.servers import NO_CREDENTIALS, Server, expect, soon, wait_for

from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.routing import SLOTS
from kvserving_connector.store.valkey import ValkeyStore

KEYS = [f"kv1-00-{os.urandom(36).hex()}" for _ in range(60)]


@pytest.fixture
def cluster(start_server: Callable[..., Server]) -> list[Server]:
    servers = [start_server("--cluster-enabled", "yes", "--cluster-node-timeout", "2000") for _ in range(3)]
    share = SLOTS // 3 + 1
    for index, server in enumerate(servers):
        first, last = index * share, min((index + 1) * share, SLOTS) - 1
        server.command(b"CLUSTER", b"ADDSLOTSRANGE", b"%d" % first, b"%d" % last)
        # Without epochs of their own, servers that meet argue about who is who for a while.
        server.command(b"CLUSTER", b"SET-CONFIG-EPOCH", b"%d" % (index + 1))
    for server in servers[1:]:
        server.command(b"CLUSTER", b"MEET", b"127.0.0.1", b"%d" % servers[0].port)
    wait_for(lambda: all(b"cluster_state:ok" in _info(server) for server in servers), 30)
    return servers


def _info(server: Server) -> bytes:
    answer = server.command(b"CLUSTER", b"INFO")
    assert isinstance(answer, bytes)
    return answer


def read(store: ValkeyStore, key: str) -> bytes:
    buffer = memoryview(bytearray(1000))
    return bytes(buffer[: store.get(key, buffer, soon())])


def test_a_cluster_is_found_from_one_address_and_survives_a_dead_server(cluster: list[Server]) -> None:
    store = ValkeyStore([cluster[0].address], NO_CREDENTIALS)
    try:
        assert store.exists(KEYS, soon()) == [False] * len(KEYS)
        for key in KEYS:
            assert store.put(key, [key.encode()], soon())
        sizes = [int(str(server.command(b"DBSIZE"))) for server in cluster]
        assert sum(sizes) == len(KEYS)
        assert all(sizes)
        assert all(read(store, key) == key.encode() for key in KEYS)
        assert store.exists(KEYS, soon()) == [True] * len(KEYS)
        assert store.usage(soon()).used_bytes > 0
        cluster[2].kill()
        found = store.exists(KEYS, soon())
        assert found.count(True) == sizes[0] + sizes[1]
        assert set(found) <= {True, Reason.UNREACHABLE, Reason.UNAVAILABLE}
    finally:
        store.close()


def test_slots_that_moved_are_followed(cluster: list[Server]) -> None:
    store = ValkeyStore([server.address for server in cluster], NO_CREDENTIALS)
    try:
        assert store.put(KEYS[0], [b"first"], soon())
        before = [int(str(server.command(b"DBSIZE"))) for server in cluster]
        source = before.index(1)
        target = (source + 1) % 3
        number = cluster[source].command(b"CLUSTER", b"KEYSLOT", KEYS[0].encode())
        node = cluster[target].command(b"CLUSTER", b"MYID")
        assert isinstance(node, bytes)
        store.delete(KEYS[0], soon())
        for server in (cluster[target], cluster[source], cluster[(source + 2) % 3]):
            server.command(b"CLUSTER", b"SETSLOT", str(number).encode(), b"NODE", node)
        # A second passes between two readings of the slots.
        wait_for(lambda: _puts(store), 10)
        assert read(store, KEYS[0]) == b"second"
        assert cluster[target].command(b"EXISTS", KEYS[0].encode()) == 1
    finally:
        store.close()


def _puts(store: ValkeyStore) -> bool:
    try:
        return store.put(KEYS[0], [b"second"], soon())
    except StoreFault as fault:
        expect(fault, Reason.PROTOCOL, Reason.UNAVAILABLE)
        return False
