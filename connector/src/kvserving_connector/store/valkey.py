"""A store of Valkey or Redis servers: one, several independent ones, or a cluster."""

from __future__ import annotations

import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from kvserving_connector.store.address import Address, Credentials, server
from kvserving_connector.store.client import Part, Reason, StoreFault, Usage
from kvserving_connector.store.endpoint import Endpoint, Started
from kvserving_connector.store.outage import FAIR_SECONDS, STALL_SECONDS
from kvserving_connector.store.resp import Connection, ServerError, encode, encode_object
from kvserving_connector.store.routing import SLOTS, Rendezvous, slot

T = TypeVar("T")
Range: TypeAlias = tuple[int, int, str, int]

DEFAULT_PORT = 6379
EXAMPLE = "redis://host:6379"
_TLS = ("rediss", "valkeys")
SCHEMES = ("redis", "valkey", *_TLS)

_BATCH = 512
_REFRESH_SECONDS = 1.0
# What a server gets at least to take a question: a fair time, so that one that hangs is known to hang afterwards and
# costs the next call nothing.
_TURN_SECONDS = FAIR_SECONDS + 0.1
_SLOTS_SECONDS = 2 * _TURN_SECONDS
# Connecting goes server by server; what the first ones have answered by then is still received.
_ASKING_SHARE = 0.9
_ELSEWHERE = frozenset({Reason.UNREACHABLE, Reason.TIMEOUT, Reason.UNAVAILABLE})
"""Faults of a cluster's server after which another may have its slots: a replica takes over, say."""


def open_servers(urls: Sequence[str], _max_bytes: int | None, credentials: Credentials) -> ValkeyStore:
    """Return the client of the servers at ``urls``, which bound themselves. Raises ValueError for a wrong address."""
    return ValkeyStore([server_address(url) for url in urls], credentials)


def server_address(url: str) -> Address:
    """Return the address of one server: with TLS for rediss and valkeys. Raises ValueError for a wrong one."""
    return server(url, EXAMPLE, DEFAULT_PORT, tls=_TLS)


class ValkeyStore:
    """The client (see StoreClient). Independent servers share keys by rendezvous hashing over their addresses.

    A server that answers MOVED makes the client read the cluster's slots; the addresses are its seeds from then on.
    A key whose server is down is a miss, never another server's.
    """

    def __init__(self, addresses: Sequence[Address], credentials: Credentials) -> None:
        """Connects nothing yet. Raises ValueError when there is no address."""
        if not addresses:
            raise ValueError("urls: a store needs at least one address")
        self._credentials = credentials
        self._seeds = tuple(Endpoint(address, credentials) for address in addresses)
        self._shards = Rendezvous([str(address) for address in addresses])
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._nodes: dict[Address, Endpoint] = {endpoint.address: endpoint for endpoint in self._seeds}
        self._slots: list[Endpoint | None] | None = None
        self._refreshed = 0.0
        self._closed = False

    def exists(self, keys: Sequence[str], deadline: float) -> list[bool | Reason]:
        """See StoreClient: one pipeline per server, all servers at once."""
        found: dict[str, bool | Reason] = {}
        moved = self._ask(keys, found, deadline)
        if moved and self._refresh(deadline):
            self._ask(moved, found, deadline)
        elif self._slots is not None and not _ELSEWHERE.isdisjoint(found.values()):
            self._refresh(deadline)
        return [found.get(key, Reason.UNAVAILABLE) for key in keys]

    def get(self, key: str, into: memoryview, deadline: float) -> int:
        """See StoreClient."""

        def operation(connection: Connection) -> int | None:
            connection.send(encode(b"GET", key.encode("ascii")), deadline)
            return connection.bulk_into(into, deadline)

        length = self._call(key, operation, deadline)
        if length is None:
            raise StoreFault(Reason.ABSENT)
        return length

    def put(self, key: str, parts: Sequence[Part], deadline: float) -> bool:
        """See StoreClient. TOUCH comes first: it tells whether the key is there and keeps it from eviction."""
        name = key.encode("ascii")
        owner = self._owner(key)
        if owner is not None:
            owner.check_writable()

        def touch(connection: Connection) -> object:
            connection.send(encode(b"TOUCH", name), deadline)
            return connection.reply(deadline)

        def write(connection: Connection) -> object:
            connection.send(encode_object((b"SET", name), parts), deadline)
            return connection.reply(deadline)

        if self._call(key, touch, deadline) == 1:
            return False
        try:
            answer = self._call(key, write, deadline)
        except StoreFault as fault:
            owner = self._owner(key)
            if owner is not None:
                owner.note_write(fault)
            raise
        if answer != "OK":
            raise StoreFault(Reason.PROTOCOL, "SET was not answered with OK")
        return True

    def delete(self, key: str, deadline: float) -> None:
        """See StoreClient. The server frees the memory in its own time (UNLINK)."""

        def operation(connection: Connection) -> object:
            connection.send(encode(b"UNLINK", key.encode("ascii")), deadline)
            return connection.reply(deadline)

        self._call(key, operation, deadline)

    def listing(self, prefix: str, deadline: float) -> Iterator[Sequence[tuple[str, int]]]:
        """See ListedStore: SCAN, one server after the other."""
        self._refresh_if_cluster(deadline)
        for endpoint in self._servers():
            cursor = b"0"
            while True:
                cursor, batch = endpoint.call(partial(_page, cursor=cursor, prefix=prefix, deadline=deadline), deadline)
                if batch:
                    yield batch
                if cursor == b"0":
                    break

    def usage(self, deadline: float) -> Usage:
        """See StoreClient: the sum over the servers; the limit is unknown when one of them has none."""
        used, limit, bounded = 0, 0, True
        for endpoint in self._servers():
            facts = endpoint.call(partial(_memory, deadline=deadline), deadline)
            used += facts.get("used_memory", 0)
            limit += facts.get("maxmemory", 0)
            bounded &= facts.get("maxmemory", 0) > 0
        return Usage(used, limit if bounded else None)

    def close(self) -> None:
        """See StoreClient."""
        with self._lock:
            self._closed = True
            nodes = list(self._nodes.values())
        for endpoint in nodes:
            endpoint.close()

    def _refresh_if_cluster(self, deadline: float) -> None:
        """Find a cluster's other servers: a listing asks all of them, and is never redirected."""
        if self._slots is None and self._seeds[0].call(partial(_is_cluster, deadline=deadline), deadline):
            self._refresh(deadline)

    def _servers(self) -> list[Endpoint]:
        slots = self._slots
        if slots is None:
            return list(self._seeds)
        return list({endpoint.address: endpoint for endpoint in slots if endpoint is not None}.values())

    def _owner(self, key: str) -> Endpoint | None:
        """Return the server of a key; None for a slot that no server is known to have."""
        slots = self._slots
        return self._seeds[self._shards.owner(key)] if slots is None else slots[slot(key)]

    def _call(self, key: str, operation: Callable[[Connection], T], deadline: float) -> T:
        owner = self._owner(key)
        if owner is not None:
            try:
                return owner.call(operation, deadline)
            except StoreFault as fault:
                moved = isinstance(fault, ServerError) and fault.code == "MOVED"
                if not moved:
                    if self._slots is not None and fault.reason in _ELSEWHERE:
                        self._refresh(deadline)
                    raise
                if not self._refresh(deadline):
                    raise
        else:
            self._refresh(deadline)
        owner = self._owner(key)
        if owner is None:
            raise StoreFault(Reason.UNAVAILABLE, "a slot without a server")
        return owner.call(operation, deadline)

    def _ask(self, keys: Sequence[str], found: dict[str, bool | Reason], deadline: float) -> list[str]:
        """Fill ``found`` for the keys; return those that another server of a cluster may have."""
        moved: list[str] = []
        by_server: dict[Endpoint, list[str]] = defaultdict(list)
        for key in keys:
            owner = self._owner(key)
            if owner is None:
                moved.append(key)
            else:
                by_server[owner].append(key)
        while by_server:
            batches = {endpoint: its_keys[:_BATCH] for endpoint, its_keys in by_server.items()}
            for endpoint, answers in _gather(batches, deadline):
                if isinstance(answers, StoreFault):
                    found |= dict.fromkeys(by_server.pop(endpoint), answers.reason)
                    continue
                for key, answer in zip(batches[endpoint], answers, strict=True):
                    if isinstance(answer, ServerError) and answer.code == "MOVED":
                        moved.append(key)
                    else:
                        found[key] = answer.reason if isinstance(answer, ServerError) else answer
                by_server[endpoint] = by_server[endpoint][_BATCH:]
                if not by_server[endpoint]:
                    del by_server[endpoint]
        return moved

    def _refresh(self, deadline: float) -> bool:
        """Read the cluster's slots again, at most once a second; say whether they are known.

        One thread reads them. Others go on with the slots that are known; without any they wait for it.
        """
        wait = max(0.0, deadline - time.monotonic()) if self._slots is None else 0.0
        if not self._refreshing.acquire(timeout=wait):
            return self._slots is not None
        try:
            if not self._closed and time.monotonic() - self._refreshed >= _REFRESH_SECONDS:
                self._read_slots(deadline)
            return self._slots is not None and not self._closed
        finally:
            self._refreshing.release()

    def _read_slots(self, deadline: float) -> None:
        """Take over what the server that knows most says: one that lost its disk knows no slot, or only some."""
        with self._lock:
            nodes = list(self._nodes.values())
        fullest: tuple[int, list[Range], Address] | None = None
        for endpoint in nodes:
            turn = min(deadline, time.monotonic() + _SLOTS_SECONDS)
            try:
                ranges = endpoint.call(partial(_slot_ranges, deadline=turn), turn)
            except StoreFault:
                # Not a miss yet: the next server is asked for the same.
                continue
            self._refreshed = time.monotonic()
            known = sum(last + 1 - first for first, last, *_ in ranges)
            if fullest is None or known > fullest[0]:
                fullest = known, ranges, endpoint.address
            if known >= SLOTS:
                break
        if fullest is not None and fullest[0]:
            with self._lock:
                if not self._closed:
                    self._slots = self._table(fullest[1], fullest[2])

    def _table(self, ranges: list[Range], asked: Address) -> list[Endpoint | None]:
        """Return the servers by slot; slots that nobody was said to have stay with the server they had."""
        table: list[Endpoint | None] = [None] * SLOTS if self._slots is None else list(self._slots)
        for first, last, host, port in ranges:
            # A server that does not know its own address leaves it empty.
            address = Address(host or asked.host, port, asked.tls)
            endpoint = self._nodes.get(address)
            if endpoint is None:
                endpoint = self._nodes[address] = Endpoint(address, self._credentials)
            table[first : last + 1] = [endpoint] * (last + 1 - first)
        kept = {id(endpoint) for endpoint in (*table, *self._seeds)}
        for address, endpoint in list(self._nodes.items()):
            if id(endpoint) not in kept:
                self._nodes.pop(address).close()
        return table


def _gather(
    batches: Mapping[Endpoint, Sequence[str]], deadline: float
) -> Iterator[tuple[Endpoint, list[bool | ServerError] | StoreFault]]:
    """Ask all servers, then receive their answers as they come: one that hangs delays no other's."""
    waiting: dict[int, tuple[Endpoint, Started]] = {}
    poll = select.poll()
    now = time.monotonic()
    asked_by = now + (deadline - now) * _ASKING_SHARE
    for index, (endpoint, keys) in enumerate(batches.items()):
        now = time.monotonic()
        turn = min(asked_by, now + max((asked_by - now) / (len(batches) - index), _TURN_SECONDS))
        try:
            started = endpoint.begin(partial(_ask_present, keys), turn)
        except StoreFault as fault:
            yield endpoint, fault
            continue
        number = started.connection.fileno()
        waiting[number] = endpoint, started
        poll.register(number, select.POLLIN)
    while waiting:
        left = min(max(0.0, deadline - time.monotonic()), STALL_SECONDS)
        ready = [number for number, _ in poll.poll(left * 1000)]
        # Without any answer all that are left have hung for as long; receiving at once makes each of them say so.
        until = deadline if ready else time.monotonic()
        for number in ready or list(waiting):
            poll.unregister(number)
            endpoint, started = waiting.pop(number)
            try:
                answer = partial(_present, keys=batches[endpoint], deadline=until)
                yield endpoint, endpoint.finish(started, answer, until)
            except StoreFault as fault:
                yield endpoint, fault


def _ask_present(keys: Sequence[str], connection: Connection, deadline: float) -> None:
    connection.send([b"".join(b"".join(encode(b"EXISTS", key.encode("ascii"))) for key in keys)], deadline)


def _present(connection: Connection, keys: Sequence[str], deadline: float) -> list[bool | ServerError]:
    answers: list[bool | ServerError] = []
    for _ in keys:
        try:
            answers.append(connection.reply(deadline) == 1)
        except ServerError as error:
            answers.append(error)
    return answers


def _memory(connection: Connection, deadline: float) -> dict[str, int]:
    connection.send(encode(b"INFO", b"memory"), deadline)
    text = connection.reply(deadline)
    if not isinstance(text, bytes):
        raise StoreFault(Reason.PROTOCOL, "INFO was not answered with text")
    pairs = (line.split(":", 1) for line in text.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: int(value) for name, value in pairs if value.isdecimal()}


def _page(
    connection: Connection, cursor: bytes, prefix: str, deadline: float
) -> tuple[bytes, Sequence[tuple[str, int]]]:
    pattern = f"{prefix}*".encode("ascii")
    connection.send(encode(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", str(_BATCH).encode()), deadline)
    match connection.reply(deadline):
        case [bytes() as following, list() as keys]:
            names = [key for key in keys if isinstance(key, bytes) and key.isascii()]
        case _:
            raise StoreFault(Reason.PROTOCOL, "SCAN was answered with something else")
    if names:
        connection.send([b"".join(b"".join(encode(b"STRLEN", name)) for name in names)], deadline)
    # All replies are received before one is judged: a connection with replies left over would answer the next call.
    sizes = [_size(connection, deadline) for _ in names]
    refused = next((size for size in sizes if isinstance(size, ServerError) and not size.of_key), None)
    if refused is not None:
        raise refused
    found = zip(names, sizes, strict=True)
    return following, [(name.decode("ascii"), size) for name, size in found if isinstance(size, int)]


def _size(connection: Connection, deadline: float) -> int | ServerError | None:
    """Return the bytes of an object, none for a key of another type; None when it is gone."""
    try:
        size = connection.reply(deadline)
    except ServerError as error:
        return 0 if error.code == "WRONGTYPE" else error
    return size if isinstance(size, int) and size else None


def _is_cluster(connection: Connection, deadline: float) -> bool:
    connection.send(encode(b"INFO", b"cluster"), deadline)
    answer = connection.reply(deadline)
    return isinstance(answer, bytes) and b"cluster_enabled:1" in answer


def _slot_ranges(connection: Connection, deadline: float) -> list[Range]:
    connection.send(encode(b"CLUSTER", b"SLOTS"), deadline)
    answer = connection.reply(deadline)
    ranges: list[Range] = []
    for entry in answer if isinstance(answer, list) else ():
        match entry:
            case [int(first), int(last), [bytes() | None as host, int(port), *_], *_] if 0 <= first <= last < SLOTS:
                # A server that another has taken the address of keeps its slots and has port 0.
                if 0 < port < 65536:
                    ranges.append((first, last, (host or b"").decode("ascii", "replace"), port))
            case _:
                raise StoreFault(Reason.PROTOCOL, "CLUSTER SLOTS was answered with something else")
    return ranges
