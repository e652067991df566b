"""What a store is to the tier: one small interface, and the reasons why it did not serve.

Deadlines are instants of ``time.monotonic()``. Every client is thread-safe: any method may be called from any thread
at any time, also ``close`` while other calls run; those then raise StoreFault.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

Part = bytes | memoryview


class Reason(StrEnum):
    """Why an object was not read (a miss) or not written (a skip); the label ``reason`` of the tier's counters."""

    ABSENT = "absent"
    """The store has no such object."""
    UNREACHABLE = "unreachable"
    """No connection, or one that was closed."""
    TIMEOUT = "timeout"
    """No answer before the deadline."""
    DENIED = "denied"
    """Wrong password, missing permission or an unwritable directory."""
    FULL = "full"
    """No room for the object within the store's bound."""
    DISK_FULL = "disk-full"
    """No room on the disk under the store, or within a quota of it, whatever the store's bound."""
    READ_ONLY = "read-only"
    """The store takes no writes now."""
    UNAVAILABLE = "unavailable"
    """The store answers that it cannot serve now: loading, resharding, cluster down."""
    PROTOCOL = "protocol"
    """An answer that is none to what was asked."""
    IO = "io"
    """Reading or writing failed otherwise; the engine's log says how."""
    CLOSED = "closed"
    """The engine stops."""
    TRUNCATED = "truncated"
    """The object is shorter than it says."""
    FORMAT = "format"
    """Not an object of ours, or of another format version."""
    NAMESPACE = "namespace"
    """The object is of another namespace."""
    KEY = "key"
    """The object is of another chunk."""
    LENGTH = "length"
    """The object has another length than a chunk."""
    CHECKSUM = "checksum"
    """The object's bytes are not those that were written."""
    REMEMBERED = "remembered"
    """A read of this object failed a short while ago, so it was not tried again."""
    BUSY = "busy"
    """As many transfers are under way as the tier allows, or as much was written as may be until the store is swept."""
    PAUSED = "paused"
    """A load ran into its deadline a short while ago, so the store is not asked."""
    PRESENT = "present"
    """The store has the object already."""


WRONG_OBJECT = frozenset(
    {Reason.TRUNCATED, Reason.FORMAT, Reason.NAMESPACE, Reason.KEY, Reason.LENGTH, Reason.CHECKSUM}
)
"""Reasons that lie in the object itself: it is deleted, since a store keeps what it has under a key."""


class StoreFault(Exception):
    """A store did not serve; ``reason`` says why. The text names no key, no secret and no bytes of an object."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Usage:
    """Bytes that the store's objects take, and the bound where one is known.

    ``free_bytes`` are what the disk under it has left for more, whatever the bound; None where that is not known.
    """

    used_bytes: int
    limit_bytes: int | None
    free_bytes: int | None = None


class StoreClient(Protocol):
    """A store of immutable objects under ASCII keys. What was put under a key stays until it is evicted or deleted.

    To open one touches nothing; the first ``put`` makes what is missing. Until then the store is empty: nothing exists,
    ``get`` is ABSENT, ``usage`` has no objects. One with a bound evicts what was used least recently; a use within a
    minute of the last need not be noted. It may exceed the bound by one object while it evicts, or answer FULL or
    BUSY until there is room. It can be listed, too (``ListedStore``).
    """

    def exists(self, keys: Sequence[str], deadline: float) -> list[bool | Reason]:
        """Say for each key whether the store has it, in one batch; a Reason where that could not be found out.

        Raises nothing: one shard that fails does not hide what the others have.
        """
        ...

    def get(self, key: str, into: memoryview, deadline: float) -> int:
        """Read the object into ``into`` (writable bytes, not shorter than the object) and return its length.

        The body is received in ``into`` directly. A buffer at least two bytes longer than the object saves a read.
        Raises StoreFault: ABSENT, LENGTH when the object is longer than the buffer, or why the store did not serve;
        ``into`` then holds anything.
        """
        ...

    def put(self, key: str, parts: Sequence[Part], deadline: float) -> bool:
        """Write ``parts``, one after the other, as one object; readers see all of it or nothing.

        Returns False when the store had the key already: it then counts as used and nothing is written.
        Raises StoreFault: FULL, DISK_FULL, BUSY, READ_ONLY, DENIED, or why the store did not serve.
        """
        ...

    def delete(self, key: str, deadline: float) -> None:
        """Remove the object; an absent one is no fault. Raises StoreFault."""
        ...

    def usage(self, deadline: float) -> Usage:
        """Return the store's usage as far as it is known. Raises StoreFault."""
        ...

    def close(self) -> None:
        """Release connections, files and threads. Idempotent."""
        ...


def remaining(deadline: float) -> float:
    """Return the seconds until ``deadline``. Raises StoreFault TIMEOUT when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise StoreFault(Reason.TIMEOUT, "the deadline has passed")
    return left
