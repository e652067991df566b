"""What a store promises (see StoreClient) while its server is broken, and what is left of it once it is closed.

Asked of every kind that an address can name, what concerns a server of those that are behind one.
"""

from __future__ import annotations

import logging
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.connector.store.servers import (
    KEY_IN_TEXT,
    address_of,
    free_port,
    outcome,
    socket_server,
    soon,
    wait_for,
    within,
)
from tests.connector.store.test_contract import BODY, KEY, OTHER
from tests.connector.store.test_contract_faults import LONG, asked, opened

from kvserving_connector.store.client import Reason
from kvserving_connector.store.inventory import ListedStore
from kvserving_connector.store.open import KINDS, Kind

BEHIND_SERVERS = [kind for kind in KINDS if kind.port is not None]
# Short enough for a server not to be taken for one that is down: each call asks it anew.
SECONDS = 0.4
of_servers = pytest.mark.parametrize("kind", BEHIND_SERVERS, ids=lambda kind: kind.example)


def silent(connection: socket.socket) -> None:
    """Takes nothing and says nothing until the other side goes away."""
    gone = select.poll()
    with suppress(ValueError):
        # It has no descriptor where the test has ended meanwhile.
        gone.register(connection, select.POLLRDHUP)
        gone.poll()


def hang_up(connection: socket.socket) -> None:
    """Says nothing: a short request has an end of the answer, and a long one a connection that is reset."""
    connection.recv(65536)
    connection.close()


def junk(connection: socket.socket) -> None:
    """Answers with what is no answer in any protocol, however long a message it takes it for."""
    connection.recv(1)
    line = b"\x00\xff\x01\xfe" + random.Random(7).randbytes(60).replace(b"\r\n", b"") + b"\r\n"
    connection.sendall(line * 2**15)
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(65536):
        pass


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(silent, Reason.TIMEOUT), (hang_up, Reason.UNREACHABLE), (junk, Reason.PROTOCOL)],
    ids=lambda each: getattr(each, "__name__", ""),
)
@of_servers
def test_a_server_that_does_not_serve_is_told_by_its_reason_and_in_time(
    kind: Kind, answer: Callable[[socket.socket], None], expected: Reason, caplog: pytest.LogCaptureFixture
) -> None:
    with nothing_left(caplog), socket_server(answer) as address:
        store = opened(f"{kind.schemes[0]}://{address}")
        all_told(asked(store, SECONDS), expected)
        # More than the buffers on the way to a server hold.
        put = partial(store.put, OTHER, [bytes(8 * LONG)])
        assert within(lambda: outcome(lambda: put(soon(SECONDS))), SECONDS, "put") is expected
        store.close()


@of_servers
def test_a_server_that_is_not_there_is_unreachable(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    with nothing_left(caplog):
        store = opened(f"{kind.schemes[0]}://127.0.0.1:{free_port()}")
        all_told(asked(store, SECONDS), Reason.UNREACHABLE)
        store.close()


def all_told(answers: dict[str, object], expected: Reason) -> None:
    """Fail unless each call was told ``expected``, ``exists`` of each of its keys."""
    wrong = {name: each for name, each in answers.items() if each not in (expected, [expected, expected])}
    assert not wrong, f"of such a server a store says Reason.{expected.name}, and this one says {wrong}"


@of_servers
def test_a_server_whose_answer_trickles_keeps_no_call_beyond_its_deadline(
    kind: Kind, servers: ExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = address_of(kind, servers, tmp_path)
    direct = opened(url)
    direct.put(KEY, [BODY], soon())
    direct.close()
    with nothing_left(caplog), socket_server(partial(hand_on, url, 1, 0.2)) as address:
        store = opened(f"{kind.schemes[0]}://{address}")
        assert asked(store, SECONDS)["get"] is Reason.TIMEOUT
        store.close()


def hand_on(url: str, size: int, pause: float, connection: socket.socket) -> None:
    """Send to the server at ``url`` what comes, and give back its answers in pieces of ``size`` bytes at most."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as server:
        answers = threading.Thread(target=_give_back, args=(server, connection, size, pause))
        answers.start()
        with suppress(OSError):
            while data := connection.recv(65536):
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        answers.join()


def _give_back(server: socket.socket, connection: socket.socket, size: int, pause: float) -> None:
    with suppress(OSError):
        while data := server.recv(size):
            connection.sendall(data)
            # The server's slowness is what is tested: nothing tells of its end.
            time.sleep(pause)


@of_servers
def test_a_server_that_comes_back_is_used_again(kind: Kind, servers: ExitStack, tmp_path: Path) -> None:
    url = address_of(kind, servers, tmp_path)
    broken = threading.Event()

    def answer(connection: socket.socket) -> None:
        if broken.is_set():
            connection.close()
        else:
            hand_on(url, 65536, 0, connection)

    with socket_server(answer) as address:
        store = opened(f"{kind.schemes[0]}://{address}")
        broken.set()
        assert outcome(lambda: store.put(KEY, [BODY], soon())) is Reason.UNREACHABLE
        broken.clear()
        wait_for(lambda: isinstance(outcome(lambda: store.put(KEY, [BODY], soon())), bool))
        assert store.exists([KEY, OTHER], soon()) == [True, False]
        store.close()


@of_servers
def test_an_address_without_a_port_means_the_port_of_its_kind(kind: Kind) -> None:
    connected = threading.Event()

    def answer(connection: socket.socket) -> None:
        connected.set()
        hang_up(connection)

    assert kind.port is not None
    with ExitStack() as stack:
        # An address of this machine where nobody else listens, unless at all addresses.
        host = f"127.{os.getpid() % 250 + 2}.{random.randrange(2, 250)}.7"
        try:
            stack.enter_context(socket_server(answer, host, kind.port))
        except OSError as error:
            pytest.skip(f"port {kind.port} cannot be had here: {error.strerror}")
        store = opened(f"{kind.schemes[0]}://{host}")
        store.exists([KEY], soon())
        store.close()
    assert connected.is_set(), f"{kind.schemes[0]}://host does not mean port {kind.port}, which its line of KINDS says"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.example)
def test_a_closed_store_leaves_no_thread_no_open_file_and_no_key_in_the_log(
    kind: Kind, servers: ExitStack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = address_of(kind, servers, tmp_path)
    used(url, 1)
    with nothing_left(caplog):
        used(url, 5)


def used(url: str, times: int) -> None:
    """Open stores, do with each what can be done, and close them."""
    stores: list[ListedStore] = []
    for _ in range(times):
        # Kept until the end: what goes only with the object has not been closed.
        stores.append(opened(url))
        asked(stores[-1], 5.0)
        asked(stores[-1], 0.0)
        outcome(partial(stores[-1].get, KEY, memoryview(bytearray(10)), soon()))
    for store in stores:
        store.close()
    assert all(store.exists([KEY], soon()) == [Reason.CLOSED] for store in stores)


@contextmanager
def nothing_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails when what runs inside leaves a thread or an open file behind, or a key in the log, at whatever level."""
    before, files = set(threading.enumerate()), _open_files()
    engines = logging.getLogger("vllm")
    for logger in ("", "vllm", "vllm.kvserving"):
        caplog.set_level(logging.DEBUG, logger=logger)
    # Once vLLM is imported, its loggers hand nothing on.
    engines.addHandler(caplog.handler)
    try:
        yield
    finally:
        engines.removeHandler(caplog.handler)

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread not in before]

    with suppress(AssertionError):
        wait_for(lambda: not threads() and len(_open_files()) <= len(files))
    assert not threads(), "close() leaves threads"
    now = _open_files()
    assert len(now) <= len(files), f"close() leaves open files: {sorted(set(now) - set(files))}"
    assert not KEY_IN_TEXT.search(caplog.text), "a key is in the log, which no level may hold"


def _open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found
