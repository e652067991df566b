"""The client against real servers and against sockets that misbehave."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.connector.store.servers import (
    NO_CREDENTIALS,
    Server,
    expect,
    read_object,
    reason,
    socket_server,
    soon,
    wait_for,
)

from kvserving_connector.store.address import Address, Credentials
from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.outage import STALL_SECONDS
from kvserving_connector.store.resp import Connection
from kvserving_connector.store.valkey import ValkeyStore

Start = Callable[..., Server]
BODY = os.urandom(300_000)
NAME = "kv1-00-" + "ab" * 36


def names(number: int) -> list[str]:
    return [f"kv1-00-{index:072x}" for index in range(number)]


@contextmanager
def opened(*servers: Server | Address, credentials: Credentials = NO_CREDENTIALS) -> Iterator[ValkeyStore]:
    addresses = [server.address if isinstance(server, Server) else server for server in servers]
    store = ValkeyStore(addresses, credentials)
    try:
        yield store
    finally:
        store.close()


def read(store: ValkeyStore, key: str = NAME, room: int = len(BODY) + 64) -> bytes:
    return read_object(store, key, room)


def test_objects_come_back_as_they_were_put(start_server: Start) -> None:
    with opened(start_server()) as store:
        assert store.put(NAME, [BODY[:100], memoryview(BODY)[100:]], soon())
        assert read(store) == BODY
        assert read(store, room=len(BODY)) == BODY
        assert read(store, room=len(BODY) + 1) == BODY
        assert store.exists([NAME, "kv1-00-cd"], soon()) == [True, False]
        assert not store.put(NAME, [b"other"], soon())
        assert read(store) == BODY
        store.delete(NAME, soon())
        store.delete(NAME, soon())
        assert reason(lambda: read(store)) is Reason.ABSENT


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 16383, 16384, 16385, 2**20 + 7])
def test_every_length_comes_back(start_server: Start, size: int) -> None:
    body = os.urandom(size)
    with opened(start_server()) as store:
        assert store.put(NAME, [body], soon())
        assert read(store, room=size + 64) == body
        assert read(store, room=size) == body


def test_an_object_longer_than_the_buffer_is_a_miss_and_the_next_read_is_right(start_server: Start) -> None:
    with opened(start_server()) as store:
        store.put(NAME, [BODY], soon())
        assert reason(lambda: read(store, room=100)) is Reason.LENGTH
        assert read(store) == BODY


def test_many_keys_are_asked_for_in_one_go(start_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = names(3000)
    with opened(start_server()) as store:
        for key in keys[::3]:
            store.put(key, [b"x"], soon())
        sent: list[Any] = []
        send = Connection.send

        def count(self: Connection, *given: Any) -> None:
            sent.append(given)
            send(self, *given)

        monkeypatch.setattr(Connection, "send", count)
        assert store.exists(keys, soon()) == [index % 3 == 0 for index in range(3000)]
        assert 1 <= len(sent) <= 30
        assert store.exists([], soon()) == []


def test_threads_share_a_client(start_server: Start) -> None:
    keys = names(40)
    bodies = {key: os.urandom(50_000) for key in keys}
    wrong: list[str] = []
    with opened(start_server()) as store:
        for key in keys:
            store.put(key, [bodies[key]], soon())

        def work(offset: int) -> None:
            for step in range(200):
                key = keys[(offset * 7 + step) % len(keys)]
                if read(store, key) != bodies[key]:
                    wrong.append(key)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_shards_share_keys_and_a_dead_one_hides_only_its_own(start_server: Start) -> None:
    servers = [start_server() for _ in range(3)]
    keys = names(60)
    with opened(*servers) as store:
        for key in keys:
            assert store.put(key, [key.encode()], soon())
        sizes = [server.command(b"DBSIZE") for server in servers]
        assert sum(size for size in sizes if isinstance(size, int)) == 60
        assert all(sizes)
        servers[1].kill()
        found = store.exists(keys, soon())
        assert found.count(True) == 60 - int(str(sizes[1]))
        assert set(found) == {True, Reason.UNREACHABLE}
        assert all(read(store, key) == key.encode() for key, there in zip(keys, found, strict=True) if there is True)
    with opened(*reversed(servers)) as again:
        assert again.exists(keys, soon()).count(True) == found.count(True)


def test_usage_is_the_sum_of_the_shards(start_server: Start) -> None:
    servers = [start_server("--maxmemory", "100mb"), start_server("--maxmemory", "50mb")]
    with opened(*servers) as store:
        usage = store.usage(soon())
        assert usage.limit_bytes == 150 * 2**20
        assert usage.used_bytes > 0
    with opened(start_server()) as store:
        assert store.usage(soon()).limit_bytes is None


def test_a_full_store_skips_and_sends_no_more_bodies_for_a_while(start_server: Start) -> None:
    server = start_server("--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    with opened(server) as store:
        refused = 0
        for key in names(40):
            try:
                store.put(key, [BODY], soon())
            except StoreFault as fault:
                expect(fault, Reason.FULL)
                refused += 1
        assert refused > 20
        facts = server.command(b"INFO", b"errorstats")
        assert isinstance(facts, bytes)
        assert b"errorstat_OOM:count=1" in facts
        assert read(store, names(1)[0]) == BODY


def test_a_read_only_replica_serves_reads_and_skips_writes(start_server: Start) -> None:
    first = start_server()
    replica = start_server("--replicaof", "127.0.0.1", str(first.port))
    with opened(first) as store:
        store.put(NAME, [BODY], soon())
    wait_for(lambda: replica.command(b"EXISTS", NAME.encode()) == 1)
    with opened(replica) as store:
        assert read(store) == BODY
        assert reason(lambda: store.put("kv1-00-ff", [BODY], soon())) is Reason.READ_ONLY
        assert reason(lambda: store.put("kv1-00-fe", [BODY], soon())) is Reason.READ_ONLY
        assert read(store) == BODY


def test_a_killed_server_is_a_miss_at_once_and_comes_back_by_itself(start_server: Start) -> None:
    server = start_server()
    with opened(server) as store:
        store.put(NAME, [BODY], soon())
        server.kill()
        into = memoryview(bytearray(len(BODY)))
        for _ in range(3):
            began = time.monotonic()
            assert reason(lambda: store.get(NAME, into, soon(30))) is Reason.UNREACHABLE
            assert time.monotonic() - began < 15
        assert store.exists([NAME], soon()) == [Reason.UNREACHABLE]
        assert reason(lambda: store.put(NAME, [BODY], soon())) is Reason.UNREACHABLE
        server.start()
        wait_for(lambda: store.exists([NAME], soon()) == [False])
        assert reason(lambda: read(store)) is Reason.ABSENT
        assert store.put(NAME, [BODY], soon())
        assert read(store) == BODY


def test_a_restart_between_two_calls_is_not_noticed(start_server: Start) -> None:
    server = start_server()
    with opened(server) as store:
        store.put(NAME, [BODY], soon())
        server.kill()
        server.start()
        assert reason(lambda: read(store)) is Reason.ABSENT
        assert store.put(NAME, [BODY], soon())


def test_a_hung_server_costs_one_wait_and_comes_back_by_itself(start_server: Start) -> None:
    server = start_server()
    with opened(server) as store:
        store.put(NAME, [BODY], soon())
        server.hang()
        began = time.monotonic()
        assert reason(lambda: read(store)) is Reason.TIMEOUT
        assert time.monotonic() - began > 1.5
        began = time.monotonic()
        for _ in range(20):
            assert reason(lambda: read(store)) is Reason.TIMEOUT
            assert store.exists([NAME], soon()) == [Reason.TIMEOUT]
            assert reason(lambda: store.put(NAME, [BODY], soon())) is Reason.TIMEOUT
        # Were each of the 60 to wait, they would take four times as long.
        assert time.monotonic() - began < 15 * STALL_SECONDS
        server.resume()
        wait_for(lambda: store.exists([NAME], soon()) == [True])
        assert read(store) == BODY


def test_deadlines_hold_against_a_server_that_trickles() -> None:
    def trickle(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"$100000\r\n")
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    with socket_server(trickle) as address, opened(address) as store:
        began = time.monotonic()
        assert reason(lambda: store.get(NAME, memoryview(bytearray(2**20)), soon(1.0))) is Reason.TIMEOUT
        assert 0.9 < time.monotonic() - began < 30


def test_a_short_deadline_of_one_call_does_not_condemn_the_server(start_server: Start) -> None:
    server = start_server()
    with opened(server) as store:
        store.put(NAME, [BODY], soon())
        server.hang()
        assert reason(lambda: store.get(NAME, memoryview(bytearray(2**20)), soon(0.1))) is Reason.TIMEOUT
        server.resume()
        assert read(store) == BODY


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"", Reason.UNREACHABLE),
        (b"+OK\r\n", Reason.PROTOCOL),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Reason.PROTOCOL),
        (b"$-2\r\n", Reason.LENGTH),
        (b"$x\r\n", Reason.PROTOCOL),
        (b"$99999999999\r\n", Reason.LENGTH),
        (b"$5\r\nabcdefgh", Reason.PROTOCOL),
        (b"$500\r\nabc", Reason.UNREACHABLE),
        (b"x" * 20000, Reason.PROTOCOL),
        (b"-LOADING dataset\r\n", Reason.UNAVAILABLE),
        (b"-CLUSTERDOWN\r\n", Reason.UNAVAILABLE),
        (b"-ASK 1 127.0.0.1:1\r\n", Reason.UNAVAILABLE),
        (b"-NOPERM this user\r\n", Reason.DENIED),
        (b"-ERR whatever\r\n", Reason.PROTOCOL),
        (b"-MOVED 1 127.0.0.1:1\r\n", Reason.PROTOCOL),
    ],
    ids=repr,
)
def test_answers_that_are_none_are_faults(answer: bytes, expected: Reason) -> None:
    def reply(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(answer)
        connection.close()

    with socket_server(reply) as address, opened(address) as store:
        assert reason(lambda: store.get(NAME, memoryview(bytearray(1000)), soon())) is expected


def test_a_wrong_password_is_told_and_a_rotated_one_is_taken_up(start_server: Start, tmp_path: Path) -> None:
    server = start_server(password="right")
    file = tmp_path / "password"
    file.write_text("wrong\n")
    with opened(server, credentials=Credentials(password_file=str(file))) as store:
        assert reason(lambda: read(store)) is Reason.DENIED
        assert store.exists([NAME], soon()) == [Reason.DENIED]
        file.write_text("right\n")
        wait_for(lambda: store.exists([NAME], soon()) == [False])
        assert store.put(NAME, [BODY], soon())
        assert read(store) == BODY


def test_no_password_where_one_is_asked_for_and_a_missing_file_are_told(start_server: Start, tmp_path: Path) -> None:
    server = start_server(password="right")
    with opened(server) as store:
        assert store.exists([NAME], soon()) == [Reason.DENIED] or reason(lambda: read(store)) is Reason.DENIED
    with opened(server, credentials=Credentials(password_file=str(tmp_path / "none"))) as store:
        assert reason(lambda: read(store)) is Reason.DENIED


def test_a_user_of_its_own(start_server: Start) -> None:
    server = start_server()
    server.command(b"ACL", b"SETUSER", b"engine", b"on", b">secret", b"~kv1-*", b"+@all")
    with opened(server, credentials=Credentials(username="engine", fixed_password="secret")) as store:
        assert store.put(NAME, [BODY], soon())
        assert read(store) == BODY
        assert reason(lambda: store.put("other-key", [b"x"], soon())) is Reason.DENIED


def test_the_password_is_in_no_fault(start_server: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start_server(password="right")
    with opened(server, credentials=Credentials(fixed_password="hunter2")) as store:
        with pytest.raises(StoreFault) as caught:
            read(store)
        assert "hunter2" not in str(caught.value)
    assert "hunter2" not in caplog.text


def test_a_closed_client_says_so(start_server: Start) -> None:
    with opened(start_server()) as store:
        store.put(NAME, [BODY], soon())
        store.close()
        assert reason(lambda: read(store)) is Reason.CLOSED
        assert store.exists([NAME], soon()) == [Reason.CLOSED]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=store",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return key, certificate


def test_tls_with_an_authority_of_ones_own(start_server: Start, certificate: tuple[Path, Path]) -> None:
    server = start_server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])

    def relay(connection: socket.socket) -> None:
        inner = context.wrap_socket(connection, server_side=True)
        outer = socket.create_connection(("127.0.0.1", server.port))
        threading.Thread(target=copy, args=(outer, inner), daemon=True).start()
        copy(inner, outer)

    with socket_server(relay) as plain:
        address = Address(plain.host, plain.port, tls=True)
        by_file = Credentials.from_environment({"KVSERVING_STORE_CA_FILE": str(certificate[1])})
        with opened(address, credentials=by_file) as store:
            assert store.put(NAME, [BODY[:1000], BODY[1000:]], soon())
            assert read(store) == BODY
            assert store.exists([NAME], soon()) == [True]
        by_text = Credentials.from_environment({"KVSERVING_STORE_CA": certificate[1].read_text()})
        with opened(address, credentials=by_text) as store:
            assert read(store) == BODY
        for distrusting in (Credentials(), Credentials(ca="no certificate")):
            with opened(address, credentials=distrusting) as store:
                assert reason(lambda: read(store)) is Reason.DENIED


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        return
    finally:
        source.close()
        target.close()
