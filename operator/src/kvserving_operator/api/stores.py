"""Stores of the L2 tier that the operator does not deploy (``cache.l2.type: external``)."""

from __future__ import annotations

from collections.abc import Mapping

EXTERNAL: Mapping[str, int | None] = {
    "redis": 6379,
    "rediss": 6379,
    "valkey": 6379,
    "valkeys": 6379,
}
"""By the scheme of its address: the port of an address that names none; None where no port is usual.

The connector has a client for each; a test compares the two lists.
"""
