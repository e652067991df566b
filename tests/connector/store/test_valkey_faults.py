"""Faults of one key, one answer or one server, which cost nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from tests.connector.store.servers import NO_CREDENTIALS, Server, ended, socket_server, wait_for

from kvserving_connector.store.address import Address, Credentials
from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.framing import object_name
from kvserving_connector.store.tally import Tally
from kvserving_connector.store.transfers import Item, Transfers
from kvserving_connector.store.valkey import ValkeyStore

Start = Callable[..., Server]
GOOD, BAD = "kv1-00-good", "kv1-00-bad"


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


@contextmanager
def opened(*addresses: Address, credentials: Credentials = NO_CREDENTIALS) -> Iterator[ValkeyStore]:
    store = ValkeyStore(addresses, credentials)
    try:
        yield store
    finally:
        store.close()


def read(store: ValkeyStore, key: str) -> bytes | Reason:
    buffer = memoryview(bytearray(1000))
    try:
        return bytes(buffer[: store.get(key, buffer, soon())])
    except StoreFault as fault:
        return fault.reason


def commands(connection: socket.socket) -> Iterator[list[bytes]]:
    stream = connection.makefile("rb")
    while line := stream.readline():
        yield [stream.read(int(stream.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"-ASK 1 127.0.0.1:1\r\n", Reason.UNAVAILABLE),
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", Reason.UNAVAILABLE),
        (b"-CLUSTERDOWN Hash slot not served\r\n", Reason.UNAVAILABLE),
        (b"-CROSSSLOT Keys in request\r\n", Reason.PROTOCOL),
        (b"-WRONGTYPE Operation against a key\r\n", Reason.FORMAT),
    ],
)
def test_an_error_about_one_key_is_a_miss_of_that_key_alone(answer: bytes, expected: Reason) -> None:
    def serve(connection: socket.socket) -> None:
        for words in commands(connection):
            connection.sendall(answer if words[1:] == [BAD.encode()] else b"$1\r\nx\r\n")

    with socket_server(serve) as address, opened(address) as store:
        for _ in range(3):
            assert read(store, BAD) is expected
            assert read(store, GOOD) == b"x"


@pytest.mark.parametrize("answer", [b"-LOADING it\r\n", b"-CLUSTERDOWN The cluster is down\r\n", b"-NOAUTH no\r\n"])
def test_an_error_about_the_server_is_remembered(answer: bytes) -> None:
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        for words in commands(connection):
            asked.append(words[0])
            connection.sendall(answer)

    with socket_server(serve) as address, opened(address) as store:
        for _ in range(20):
            assert isinstance(read(store, GOOD), Reason)
        assert asked.count(b"GET") == 1


def test_a_key_of_another_type_is_removed_by_the_load_that_meets_it(start_server: Start) -> None:
    server, key, namespace = start_server(), b"k" * 32, bytes(32)
    name = object_name(namespace, key).encode()
    server.command(b"LPUSH", name, b"x")
    with opened(server.address) as store:
        slots = np.ones((1, 4096), np.uint8)
        transfers = Transfers(store, slots, Tally(), readers=1, writers=1)
        try:
            transfers.submit(1, [Item(key, 0)], namespace, soon(), load=True)
            assert ended(transfers, 1)[0].failed == (key,)
            wait_for(lambda: server.command(b"EXISTS", name) == 0)
            transfers.submit(2, [Item(key, 0)], namespace, soon(), load=False)
            assert (ended(transfers, 1)[0].done, server.command(b"TYPE", name)) == ((key,), "string")
        finally:
            transfers.close()


def test_hung_shards_leave_the_others_their_time(start_server: Start) -> None:
    servers = [start_server() for _ in range(4)]
    keys = [f"kv1-00-{index:072x}" for index in range(1500)]
    with opened(*(server.address for server in servers)) as store:
        assert store.exists(keys, soon()) == [False] * len(keys)
        shares = [sum(store._shards.owner(key) == index for key in keys) for index in range(4)]
        for server in servers[:3]:
            server.hang()
        # The second time nobody waits for them, whatever the deadline.
        for seconds in (2.0, 30.0):
            began = time.monotonic()
            found = store.exists(keys, soon(seconds))
            assert (found.count(False), found.count(Reason.TIMEOUT)) == (shares[3], sum(shares[:3]))
            assert time.monotonic() - began < 15


@pytest.mark.parametrize("first", [True, False])
def test_a_server_that_takes_no_connection_leaves_the_others_their_time(start_server: Start, first: bool) -> None:
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    held = []
    for _ in range(3):
        waiting = socket.socket()
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())
        held.append(waiting)
    keys = [f"kv1-00-{index:072x}" for index in range(200)]
    try:
        addresses = [Address("127.0.0.1", full.getsockname()[1]), start_server().address]
        with opened(*addresses) as store:
            keys.sort(key=lambda key: (store._shards.owner(key) == 0) is not first)
            found = store.exists(keys, soon(2.0))
            assert set(found) == {False, Reason.TIMEOUT}
            began = time.monotonic()
            assert store.exists(keys, soon(30)) == found
            assert time.monotonic() - began < 15
    finally:
        for each in (*held, full):
            each.close()


def test_a_restart_of_one_shard_between_two_batches_is_not_noticed(start_server: Start) -> None:
    servers = [start_server(), start_server()]
    keys = [f"kv1-00-{index:072x}" for index in range(200)]
    with opened(*(server.address for server in servers)) as store:
        store.exists(keys, soon())
        servers[0].kill()
        servers[0].start()
        assert store.exists(keys, soon()) == [False] * len(keys)


def test_arrays_without_end_do_not_stop_the_wait_for_a_server() -> None:
    good: list[bool] = []

    def serve(connection: socket.socket) -> None:
        for words in commands(connection):
            answer = b"+PONG\r\n" if words[0] == b"PING" else b":1\r\n"
            connection.sendall(answer if good else b"*1\r\n" * 3000)

    with socket_server(serve) as address, opened(address) as store:
        assert store.exists([GOOD], soon()) == [Reason.PROTOCOL]
        time.sleep(0.5)
        good.append(True)
        wait_for(lambda: store.exists([GOOD], soon()) == [True])


@pytest.mark.parametrize(
    ("address", "credentials", "expected"),
    [
        (Address("store..svc", 1), Credentials(), Reason.UNREACHABLE),
        (Address("a" * 64 + ".svc", 1), Credentials(), Reason.UNREACHABLE),
        (Address("127.0.0.1", 70000), Credentials(), Reason.UNREACHABLE),
        (None, Credentials(fixed_password="p\udcff"), Reason.DENIED),
        (None, Credentials(username="u\udcff", fixed_password="p"), Reason.DENIED),
        (None, Credentials(ca="# Főtanúsítvány\n-----BEGIN CERTIFICATE-----\n"), Reason.DENIED),
        (None, Credentials(ca="é"), Reason.DENIED),
        (None, Credentials(ca_file="/does/not/exist"), Reason.DENIED),
    ],
)
def test_settings_that_no_connection_can_use_are_faults(
    address: Address | None, credentials: Credentials, expected: Reason
) -> None:
    with socket_server(lambda connection: None) as listening:
        tls = bool(credentials.ca or credentials.ca_file)
        with opened(address or Address(listening.host, listening.port, tls), credentials=credentials) as store:
            assert store.exists([GOOD], soon()) == [expected]
            assert read(store, GOOD) is expected
