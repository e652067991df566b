"""Keys of one prompt at every scheduler step for ``chunk_hashing``, in the engine's Python.

``python -m benchmarks.chunk_hasher ROUNDS`` prints one JSON list: for each prompt its span in tokens and, for both
ways of making keys, the hash calls of the first step, of all later ones, and the seconds of a later step in each round.
"""

from __future__ import annotations

import json
import sys
import time
from hashlib import sha256
from typing import Any

from kvserving_connector.core.chunk_hashes import HashBook
from kvserving_connector.core.planner import Group, GroupKind, HybridOffloadPlanner

from .chunk_hashing import HASH_BLOCK, STEPS

PROMPTS = (
    (23_000, (Group(GroupKind.FULL, 1056), Group(GroupKind.MAMBA, 1056))),
    (120_000, (Group(GroupKind.FULL, 16), Group(GroupKind.SLIDING_WINDOW, 16, 1024))),
)


class EachTime:
    """The yardstick: a key for each chunk and group, made from the chunk's block hashes whenever it is asked for."""

    def __init__(self, planner: HybridOffloadPlanner) -> None:
        self._planner = planner
        self.calls = 0

    def step(self, block_hashes: list[bytes]) -> None:
        """Make the keys of all whole chunks for every group."""
        size = self._planner.hashes_per_span
        for group in range(len(self._planner.groups)):
            for end in range(size, len(block_hashes) + 1, size):
                sha256(b"".join(block_hashes[end - size : end]) + bytes([group])).digest()
                self.calls += 1


class Ours:
    """The book of keys that the connector's scheduler half keeps."""

    def __init__(self, planner: HybridOffloadPlanner) -> None:
        self._book = HashBook(planner.hashes_per_span)

    def step(self, block_hashes: list[bytes]) -> None:
        """Ask for the request's keys."""
        self._book.of("request").keys(block_hashes)

    @property
    def calls(self) -> int:
        """Hashes computed so far."""
        return self._book.calls


def main() -> None:
    """Measure both ways in turns."""
    turns = int(sys.argv[1])
    pairs = []
    for tokens, groups in PROMPTS:
        planner = HybridOffloadPlanner.make(groups, hash_block_tokens=HASH_BLOCK, max_model_len=2 * tokens)
        hashes = [sha256(b"%d" % index).digest() for index in range(tokens // HASH_BLOCK)]
        rounds = [(_measured(Ours(planner), hashes), _measured(EachTime(planner), hashes)) for _ in range(turns)]
        pair: dict[str, Any] = {"tokens": tokens, "span": planner.span_tokens}
        for side, results in zip(("ours", "each_time"), zip(*rounds, strict=True), strict=True):
            first, later, _ = results[0]
            pair[side] = {"first": first, "later": later, "seconds": [seconds for *_, seconds in results]}
        pairs.append(pair)
    print(json.dumps(pairs))


def _measured(side: Ours | EachTime, hashes: list[bytes]) -> tuple[int, int, float]:
    side.step(hashes)
    first = side.calls
    start = time.perf_counter()
    for _ in range(STEPS - 1):
        side.step(hashes)
    seconds = (time.perf_counter() - start) / (STEPS - 1)
    return first, side.calls - first, seconds


if __name__ == "__main__":
    main()
