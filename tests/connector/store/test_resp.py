"""Bodies that are received with their line in one call: whatever comes instead of the usual line is read right."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest
from tests.connector.store.servers import NO_CREDENTIALS, socket_server, soon

from kvserving_connector.store.client import Reason, StoreFault
from kvserving_connector.store.outage import STALL_SECONDS
from kvserving_connector.store.resp import Connection, ServerError, encode

ROOM = 60_000
USUAL = bytes(range(250)) * 120
LONGER = b"l" * 50_000
SHORTER = b"s" * 2000
TINY = b"t"


def bulk(body: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(body), body)


def answering(*answers: bytes, pieces: int) -> Callable[[socket.socket], None]:
    """Answer one request after the other, the first ``pieces`` bytes of an answer one by one."""

    def answer(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for one in answers:
            connection.recv(1000)
            for at in range(min(pieces, len(one))):
                connection.sendall(one[at : at + 1])
                time.sleep(0.002)
            connection.sendall(one[pieces:])
        connection.recv(1000)

    return answer


def ask(connection: Connection, room: int = ROOM) -> bytes | None:
    connection.send(encode(b"GET", b"name"), soon())
    into = memoryview(bytearray(b"\xee" * room))
    length = connection.bulk_into(into, soon())
    return None if length is None else bytes(into[:length])


@pytest.mark.parametrize("pieces", [0, 1, 5, 8, 9, 12])
def test_each_body_comes_back_whatever_came_before_it(pieces: int) -> None:
    bodies = [USUAL, USUAL, None, USUAL, LONGER, LONGER, SHORTER, USUAL, b"", USUAL, TINY, TINY, USUAL, USUAL[::-1]]
    answers = [b"$-1\r\n" if body is None else bulk(body) for body in bodies]
    with socket_server(answering(*answers, pieces=pieces)) as address:
        connection = Connection(address, NO_CREDENTIALS, soon())
        assert [ask(connection) for _ in bodies] == bodies
        connection.close()


@pytest.mark.parametrize("pieces", [0, 3])
def test_an_error_instead_of_a_body_is_told_and_the_next_body_comes(pieces: int) -> None:
    with socket_server(answering(bulk(USUAL), b"-LOADING it\r\n", bulk(USUAL), pieces=pieces)) as address:
        connection = Connection(address, NO_CREDENTIALS, soon())
        assert ask(connection) == USUAL
        with pytest.raises(ServerError, match="LOADING"):
            ask(connection)
        assert ask(connection) == USUAL
        connection.close()


def test_a_smaller_buffer_than_before_is_not_written_beyond_its_end() -> None:
    with socket_server(answering(bulk(USUAL), bulk(SHORTER), bulk(USUAL), pieces=0)) as address:
        connection = Connection(address, NO_CREDENTIALS, soon())
        assert ask(connection) == USUAL
        assert ask(connection, len(SHORTER)) == SHORTER
        assert ask(connection, len(USUAL)) == USUAL
        connection.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (bulk(b"m" * (ROOM + 1)), Reason.LENGTH),
        (bulk(USUAL)[:-2] + b"xy", Reason.PROTOCOL),
        (b"+OK\r\n", Reason.PROTOCOL),
        (b"?" * (ROOM - 1), Reason.PROTOCOL),
        (bulk(USUAL)[:-1], Reason.TIMEOUT),
        (bulk(USUAL)[:3], Reason.TIMEOUT),
    ],
    ids=["longer than the buffer", "without its end", "status", "no line", "one byte short", "half a line"],
)
def test_what_is_no_body_after_a_good_one_is_a_fault(answer: bytes, expected: Reason) -> None:
    with socket_server(answering(bulk(USUAL), answer, pieces=0)) as address:
        connection = Connection(address, NO_CREDENTIALS, soon())
        assert ask(connection) == USUAL
        connection.send(encode(b"GET", b"name"), soon())
        with pytest.raises(StoreFault) as told:
            connection.bulk_into(memoryview(bytearray(ROOM)), soon(0.5))
        assert told.value.reason is expected
        connection.close()


def test_a_short_deadline_holds_after_a_long_one_and_a_long_one_after_a_short_one() -> None:
    def late(connection: socket.socket) -> None:
        for pause in (0.0, 0.6, 0.0):
            connection.recv(1000)
            time.sleep(pause)
            connection.sendall(bulk(USUAL))
        connection.recv(1000)

    with socket_server(late) as address:
        connection = Connection(address, NO_CREDENTIALS, soon())
        into = memoryview(bytearray(ROOM))
        for seconds in (0.3, 30.0):
            connection.send(encode(b"GET", b"name"), soon(seconds))
            assert connection.bulk_into(into, soon(seconds)) == len(USUAL)
        began = time.monotonic()
        with pytest.raises(StoreFault):
            connection.bulk_into(into, soon(0.2))
        assert 0.15 < time.monotonic() - began < STALL_SECONDS / 2
        connection.close()


@pytest.mark.parametrize(("depth", "fine"), [(8, True), (9, False), (100_000, False)])
def test_arrays_in_arrays_are_bounded(depth: int, fine: bool) -> None:
    with socket_server(answering(b"*1\r\n" * depth + b":7\r\n", pieces=0)) as address:
        connection = Connection(address, NO_CREDENTIALS, soon())
        connection.send(encode(b"ANY"), soon())
        if fine:
            assert "7" in repr(connection.reply(soon()))
        else:
            with pytest.raises(StoreFault) as told:
                connection.reply(soon())
            assert told.value.reason is Reason.PROTOCOL
        connection.close()
