"""Which server of several has a key: by rendezvous hashing among shards, by slot in a cluster."""

from __future__ import annotations

import hashlib
from binascii import crc_hqx
from collections.abc import Sequence

SLOTS = 16384


class Rendezvous:
    """Shares keys among shards by the highest of one hash per shard.

    A shard that is added takes an equal share from each of the others and no other key moves, whatever the order.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._salts = [hashlib.sha256(name.encode()).digest() for name in names]

    def owner(self, key: str) -> int:
        """Return the index of the shard that ``key`` (ASCII) belongs to."""
        if len(self._salts) == 1:
            return 0
        text = key.encode("ascii")
        weights = [(hashlib.blake2b(text, digest_size=8, key=salt).digest(), salt) for salt in self._salts]
        return max(range(len(weights)), key=weights.__getitem__)


def slot(key: str) -> int:
    """Return the cluster slot of a key: CRC-16/XMODEM of the whole key (names of objects hold no hash tag)."""
    return crc_hqx(key.encode("ascii"), 0) % SLOTS
