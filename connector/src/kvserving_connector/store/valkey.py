"""A store of Valkey or Redis servers: one, several independent ones, or a cluster."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from kvserving_connector.store.address import Address, Credentials
from kvserving_connector.store.client import Part, Reason, StoreFault, Usage
from kvserving_connector.store.endpoint import Endpoint
from kvserving_connector.store.resp import Connection, ServerError, encode, encode_object
from kvserving_connector.store.routing import SLOTS, Rendezvous, slot

T = TypeVar("T")

_BATCH = 512
_REFRESH_SECONDS = 1.0


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
        self._nodes: dict[Address, Endpoint] = {endpoint.address: endpoint for endpoint in self._seeds}
        self._slots: list[Endpoint | None] | None = None
        self._refreshed = 0.0
        self._closed = False

    def exists(self, keys: Sequence[str], deadline: float) -> list[bool | Reason]:
        """See StoreClient: one pipeline per server."""
        found: dict[str, bool | Reason] = {}
        moved = self._ask(keys, found, deadline)
        if moved and self._refresh(deadline):
            self._ask(moved, found, deadline)
        elif self._slots is not None and not {Reason.UNREACHABLE, Reason.TIMEOUT}.isdisjoint(found.values()):
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
        self._endpoint(key).check_writable()

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
            self._endpoint(key).note_write(fault)
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

    def _endpoint(self, key: str) -> Endpoint:
        slots = self._slots
        if slots is None:
            return self._seeds[self._shards.owner(key)]
        endpoint = slots[slot(key)]
        if endpoint is None:
            raise StoreFault(Reason.UNAVAILABLE, "a slot without a server")
        return endpoint

    def _call(self, key: str, operation: Callable[[Connection], T], deadline: float) -> T:
        try:
            return self._endpoint(key).call(operation, deadline)
        except ServerError as error:
            if error.code != "MOVED" or not self._refresh(deadline):
                raise
        except StoreFault as fault:
            if self._slots is not None and fault.reason in (Reason.UNREACHABLE, Reason.TIMEOUT):
                # A replica may have taken over, and only the other servers can tell.
                self._refresh(deadline)
            raise
        return self._endpoint(key).call(operation, deadline)

    def _ask(self, keys: Sequence[str], found: dict[str, bool | Reason], deadline: float) -> list[str]:
        """Fill ``found`` for the keys; return those that another server of a cluster has."""
        moved: list[str] = []
        by_server: dict[Endpoint, list[str]] = defaultdict(list)
        for key in keys:
            try:
                by_server[self._endpoint(key)].append(key)
            except StoreFault as fault:
                found[key] = fault.reason
        for endpoint, its_keys in by_server.items():
            for start in range(0, len(its_keys), _BATCH):
                batch = its_keys[start : start + _BATCH]
                try:
                    answers = endpoint.call(partial(_present, keys=batch, deadline=deadline), deadline)
                except StoreFault as fault:
                    found |= dict.fromkeys(its_keys[start:], fault.reason)
                    break
                for key, answer in zip(batch, answers, strict=True):
                    if isinstance(answer, ServerError) and answer.code == "MOVED":
                        moved.append(key)
                    else:
                        found[key] = answer.reason if isinstance(answer, ServerError) else answer
        return moved

    def _refresh(self, deadline: float) -> bool:
        """Read the cluster's slots again, at most once a second; say whether they are known."""
        with self._lock:
            if self._closed:
                return False
            if self._slots is not None and time.monotonic() - self._refreshed < _REFRESH_SECONDS:
                return True
            for endpoint in list(self._nodes.values()):
                try:
                    ranges = endpoint.call(partial(_slot_ranges, deadline=deadline), deadline)
                except StoreFault:
                    # Not a miss yet: the next server is asked for the same.
                    continue
                self._slots = self._table(ranges, endpoint.address)
                self._refreshed = time.monotonic()
                return True
        return False

    def _table(self, ranges: list[tuple[int, int, str, int]], asked: Address) -> list[Endpoint | None]:
        table: list[Endpoint | None] = [None] * SLOTS
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


def _present(connection: Connection, keys: Sequence[str], deadline: float) -> list[bool | ServerError]:
    connection.send([b"".join(b"".join(encode(b"EXISTS", key.encode("ascii"))) for key in keys)], deadline)
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
    return {name: int(value) for name, value in pairs if value.isdigit()}


def _page(
    connection: Connection, cursor: bytes, prefix: str, deadline: float
) -> tuple[bytes, Sequence[tuple[str, int]]]:
    pattern = f"{prefix}*".encode("ascii")
    connection.send(encode(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", str(_BATCH).encode()), deadline)
    match connection.reply(deadline):
        case [bytes() as following, list() as keys]:
            names = [key for key in keys if isinstance(key, bytes)]
        case _:
            raise StoreFault(Reason.PROTOCOL, "SCAN was answered with something else")
    if names:
        connection.send([b"".join(b"".join(encode(b"STRLEN", name)) for name in names)], deadline)
    sizes = [connection.reply(deadline) for _ in names]
    found = zip(names, sizes, strict=True)
    return following, [
        (name.decode("ascii", "replace"), size) for name, size in found if isinstance(size, int) and size
    ]


def _is_cluster(connection: Connection, deadline: float) -> bool:
    connection.send(encode(b"INFO", b"cluster"), deadline)
    answer = connection.reply(deadline)
    return isinstance(answer, bytes) and b"cluster_enabled:1" in answer


def _slot_ranges(connection: Connection, deadline: float) -> list[tuple[int, int, str, int]]:
    connection.send(encode(b"CLUSTER", b"SLOTS"), deadline)
    answer = connection.reply(deadline)
    ranges: list[tuple[int, int, str, int]] = []
    for entry in answer if isinstance(answer, list) else ():
        match entry:
            case [int(first), int(last), [bytes() | None as host, int(port), *_], *_] if 0 <= first <= last < SLOTS:
                ranges.append((first, last, (host or b"").decode("ascii", "replace"), port))
            case _:
                raise StoreFault(Reason.PROTOCOL, "CLUSTER SLOTS was answered with something else")
    return ranges
