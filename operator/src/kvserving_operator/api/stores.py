"""Stores of the L2 tier that the operator does not deploy (``cache.l2.type: external``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class External:
    """What the operator knows of the addresses with one scheme.

    ``example`` is such an address, for messages. ``port`` is the one of an address that names none; None where no port
    is usual. A ``folder`` lies in the engines' pods: its address is a path and names no host, and no way out of the
    pods is opened for it. The rest says what else an address may have; with more, an object is refused. Behind the
    host stands nothing, the number of a database where it has ``databases`` (engines use 0 alone), or any path where it
    has ``paths``. ``parameters`` are those behind the ?, beside ``bytes`` of a store that is ``bounded`` by it.

    The connector's table of the same, ``KINDS`` in its ``store/open.py``, refuses an address by the same rule.
    """

    example: str
    port: int | None = None
    folder: bool = False
    bounded: bool = False
    databases: bool = False
    paths: bool = False
    parameters: tuple[str, ...] = ()


EXTERNAL: Mapping[str, External] = {
    "redis": External("redis://host:6379", port=6379, databases=True),
    "rediss": External("rediss://host:6379", port=6379, databases=True),
    "valkey": External("valkey://host:6379", port=6379, databases=True),
    "valkeys": External("valkeys://host:6379", port=6379, databases=True),
}
"""By the scheme of an address. The connector has a client for each; a test compares the two lists."""
