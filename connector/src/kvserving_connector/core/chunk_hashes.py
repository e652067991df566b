"""Keys of a request's spans and of their parts, each computed once however many scheduler steps ask.

vLLM's block hashes are chained: the hash of a block stands for every token before its end. So the hash of a span's last
block names the whole prefix, and one key per span serves every cache group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

_GROUP_BYTES = 2

Combine = Callable[[bytes], bytes]
"""From the hash of a span's last block to the span's key."""


def span_hash(hashes_per_span: int) -> Combine:
    """Return the hash that makes span keys: SHA-256 (32 bytes), different for each span size.

    The size is part of it because spans of two sizes that end at one token hold different blocks.
    """
    start = sha256(b"kvserving span %d\n" % hashes_per_span)

    def combine(block_hash: bytes) -> bytes:
        state = start.copy()
        state.update(block_hash)
        return state.digest()

    return combine


class ChunkHashes:
    """The span keys of one request. Not safe for several threads at once.

    ``calls`` counts the hashes computed so far.
    """

    def __init__(self, hashes_per_span: int, combine: Combine | None = None) -> None:
        if hashes_per_span < 1:
            raise ValueError(f"hashes_per_span is {hashes_per_span}; a span has at least one block hash")
        self._per_span = hashes_per_span
        self._combine = combine or span_hash(hashes_per_span)
        self._keys: list[bytes] = []
        self._last_hashes: list[bytes] = []
        self.calls = 0

    def keys(self, block_hashes: Sequence[bytes]) -> Sequence[bytes]:
        """Return one key per whole span that the request's block hashes cover, and hash only spans that are new.

        Not a copy: do not change it. It may grow with the next call; the keys it holds stay. A list that is no longer
        the one seen before (shorter, or with another hash at the last known span) is hashed again from where it
        differs. The cost without new spans does not depend on the prompt's length.
        """
        spans = len(block_hashes) // self._per_span
        kept = min(spans, len(self._keys))
        while kept and self._last_hashes[kept - 1] != block_hashes[kept * self._per_span - 1]:
            kept -= 1
        if kept < len(self._keys):
            self._keys, self._last_hashes = self._keys[:kept], self._last_hashes[:kept]
        for span in range(kept, spans):
            last = block_hashes[(span + 1) * self._per_span - 1]
            self._keys.append(self._combine(last))
            self._last_hashes.append(last)
        self.calls += spans - kept
        return self._keys


class HashBook:
    """The span keys of all requests in flight.

    A request stays until ``drop``: it may finish in the step that saves its blocks, and the reports of that step still
    need its keys.
    """

    def __init__(self, hashes_per_span: int, combine: Combine | None = None) -> None:
        self._per_span = hashes_per_span
        self._combine = combine or span_hash(hashes_per_span)
        self._requests: dict[str, ChunkHashes] = {}
        self._calls_of_dropped = 0

    def of(self, request_id: str) -> ChunkHashes:
        """Return the request's keys, empty ones for a request not seen before or dropped."""
        found = self._requests.get(request_id)
        if found is None:
            found = self._requests[request_id] = ChunkHashes(self._per_span, self._combine)
        return found

    def drop(self, request_id: str) -> None:
        """Forget a request when no report about it can come any more; nothing happens when it is not known."""
        dropped = self._requests.pop(request_id, None)
        if dropped is not None:
            self._calls_of_dropped += dropped.calls

    @property
    def calls(self) -> int:
        """Hashes computed so far, those of dropped requests included."""
        return self._calls_of_dropped + sum(hashes.calls for hashes in self._requests.values())

    def __len__(self) -> int:
        return len(self._requests)


def part_key(span_key: bytes, group: int) -> bytes:
    """Return the key of a group's part of a span: the span's key and the group's id, 2 bytes, big endian.

    Raises OverflowError for a group id that does not fit.
    """
    return span_key + group.to_bytes(_GROUP_BYTES, "big")
