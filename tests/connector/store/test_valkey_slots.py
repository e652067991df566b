"""Where the client takes a cluster's slots from: real servers, and sockets that tell any table."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.connector.store.servers import NO_CREDENTIALS, Server, socket_server, wait_for
from tests.connector.store.test_valkey_faults import commands

from kvserving_connector.store.address import Address
from kvserving_connector.store.client import Reason
from kvserving_connector.store.outage import STALL_SECONDS
from kvserving_connector.store.routing import SLOTS
from kvserving_connector.store.valkey import ValkeyStore

KEYS = [f"kv1-00-{os.urandom(36).hex()}" for _ in range(60)]
Tables = list[list[tuple[int, int, int]]]


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


@contextmanager
def telling(number: int) -> Iterator[tuple[list[Address], Tables, list[int]]]:
    """Servers that have every key they are asked for while MOVED is off, and tell the table that is theirs in a list.

    The second list holds numbers of servers that answer MOVED.
    """
    tables: Tables = [[] for _ in range(number)]
    moved: list[int] = []

    def serving(index: int) -> Callable[[socket.socket], None]:
        def serve(connection: socket.socket) -> None:
            for words in commands(connection):
                if words[0] == b"CLUSTER":
                    rows = [b"*3\r\n:%d\r\n:%d\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % row for row in tables[index]]
                    connection.sendall(b"*%d\r\n" % len(rows) + b"".join(rows))
                else:
                    connection.sendall(b"-MOVED 1 127.0.0.1:1\r\n" if index in moved else b":1\r\n")

        return serve

    with ExitStack() as stack:
        addresses = [stack.enter_context(socket_server(serving(index))) for index in range(number)]
        yield addresses, tables, moved


def test_a_server_that_knows_no_slot_or_some_is_not_believed_while_another_knows_more() -> None:
    with telling(3) as (addresses, tables, moved):
        moved += [0, 1]
        tables[1] = [(0, 100, addresses[0].port)]
        tables[2] = [(0, SLOTS - 1, addresses[2].port)]
        store = ValkeyStore(addresses, NO_CREDENTIALS)
        try:
            assert store.exists(KEYS, soon()) == [True] * len(KEYS)
        finally:
            store.close()


def test_slots_are_kept_while_only_an_empty_server_answers() -> None:
    with telling(2) as (addresses, tables, moved):
        moved += [0]
        tables[0] = tables[1] = [(0, SLOTS - 1, addresses[1].port)]
        store = ValkeyStore(addresses, NO_CREDENTIALS)
        try:
            assert store.exists(KEYS, soon()) == [True] * len(KEYS)
            moved.append(1)
            tables[0], tables[1] = [], [(0, SLOTS - 1, 0)]
            store._refreshed = 0.0
            assert store.exists(KEYS, soon()) == [Reason.UNAVAILABLE] * len(KEYS)
            moved.remove(1)
            assert store.exists(KEYS, soon()) == [True] * len(KEYS)
        finally:
            store.close()


def test_a_slot_without_a_server_is_asked_for_again() -> None:
    with telling(1) as (addresses, tables, moved):
        moved += [0]
        tables[0] = [(0, 0, addresses[0].port)]
        store = ValkeyStore(addresses, NO_CREDENTIALS)
        try:
            assert store.exists(KEYS, soon()) == [Reason.UNAVAILABLE] * len(KEYS)
            moved.clear()
            tables[0] = [(0, SLOTS - 1, addresses[0].port)]
            wait_for(lambda: store.exists(KEYS, soon()) == [True] * len(KEYS))
            tables[0], store._slots, store._refreshed = [(0, 0, addresses[0].port)], [None] * SLOTS, 0.0
            assert store.exists(KEYS, soon()).count(True) < len(KEYS)
            tables[0], store._refreshed = [(0, SLOTS - 1, addresses[0].port)], 0.0
            assert not store.put(KEYS[0], [b"x"], soon())
        finally:
            store.close()


def joined(servers: list[Server]) -> list[Server]:
    share = SLOTS // len(servers) + 1
    for index, server in enumerate(servers):
        first, last = index * share, min((index + 1) * share, SLOTS) - 1
        server.command(b"CLUSTER", b"ADDSLOTSRANGE", b"%d" % first, b"%d" % last)
        server.command(b"CLUSTER", b"SET-CONFIG-EPOCH", b"%d" % (index + 1))
    for server in servers[1:]:
        server.command(b"CLUSTER", b"MEET", b"127.0.0.1", b"%d" % servers[0].port)
    wait_for(lambda: all(b"cluster_state:ok" in bytes(server.command(b"CLUSTER", b"INFO")) for server in servers), 30)  # type: ignore[call-overload]
    return servers


CLUSTER = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")


def test_a_server_that_lost_its_disk_costs_its_own_keys_only(start_server: Callable[..., Server]) -> None:
    servers = joined([start_server(*CLUSTER) for _ in range(3)])
    store = ValkeyStore([server.address for server in servers], NO_CREDENTIALS)
    try:
        for key in KEYS:
            assert store.put(key, [b"x"], soon())
        sizes = [int(str(server.command(b"DBSIZE"))) for server in servers]
        servers[0].kill()
        (Path(servers[0]._folder) / "nodes.conf").unlink()
        servers[0].start()
        assert servers[0].command(b"CLUSTER", b"SLOTS") == []
        store._refreshed = 0.0
        servers[1].kill()
        wait_for(lambda: Reason.UNREACHABLE in store.exists(KEYS, soon()))
        servers[1].start()
        wait_for(lambda: store.exists(KEYS, soon()).count(True) == sizes[2])
        wait_for(lambda: store.exists(KEYS, soon()).count(False) >= sizes[1])
        time.sleep(1.1)
        assert store.exists(KEYS, soon()).count(True) == sizes[2]
    finally:
        store.close()


def test_nobody_waits_for_the_thread_that_reads_the_slots(start_server: Callable[..., Server]) -> None:
    servers = [start_server("--cluster-enabled", "yes") for _ in range(5)]
    servers[0].command(b"CLUSTER", b"ADDSLOTSRANGE", b"0", b"%d" % (SLOTS - 1))
    for server in servers[1:]:
        server.command(b"CLUSTER", b"MEET", b"127.0.0.1", b"%d" % servers[0].port)
    wait_for(lambda: b"cluster_state:ok" in bytes(servers[0].command(b"CLUSTER", b"INFO")), 30)  # type: ignore[call-overload]
    store = ValkeyStore([server.address for server in servers], NO_CREDENTIALS)
    wait_for(lambda: store._refresh(soon()))
    store._refreshed = 0.0
    for server in servers:
        server.hang()
    reader = threading.Thread(target=lambda: store._refresh(soon(30)))
    reader.start()
    wait_for(store._refreshing.locked)
    began = time.monotonic()
    assert set(store.exists(KEYS[:4], soon(1.0))) == {Reason.TIMEOUT}
    store.close()
    reader.join(30)
    assert not reader.is_alive()
    # Each server that it asks takes STALL_SECONDS: it has ended before it asked them all.
    assert time.monotonic() - began < (len(servers) - 1) * STALL_SECONDS
