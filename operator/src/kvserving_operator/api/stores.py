"""Stores of the L2 tier that the operator does not deploy (``cache.l2.type: external``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class External:
    """What the operator knows of the addresses with one scheme.

    ``example`` is such an address, for messages. ``port`` is the one of an address that names none; None where no port
    is usual. A ``folder`` lies in the engines' pods: its address is a path and names no host, and no way out of the
    pods is opened for it. Where it has ``databases``, the path is the number of one, and engines use 0 alone.
    """

    example: str
    port: int | None = None
    folder: bool = False
    databases: bool = False


EXTERNAL: Mapping[str, External] = {
    "redis": External("redis://host:6379", port=6379, databases=True),
    "rediss": External("rediss://host:6379", port=6379, databases=True),
    "valkey": External("valkey://host:6379", port=6379, databases=True),
    "valkeys": External("valkeys://host:6379", port=6379, databases=True),
}
"""By the scheme of an address. The connector has a client for each; a test compares the two lists."""
