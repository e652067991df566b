"""Spans of ended requests that there was no room to save: free blocks, which hold the KV until they are reused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvserving_connector.vllm.context import SchedulerContext
from kvserving_connector.vllm.worker_cache.messages import SavePart


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A span's parts, each with the hashes that its blocks had while their request held them."""

    parts: tuple[tuple[SavePart, tuple[bytes, ...]], ...]

    def left(self, context: SchedulerContext) -> list[SavePart]:
        """Return the parts whose blocks are what they were: vLLM takes the hash of a block that it gives to another."""
        return [
            part
            for part, hashes in self.parts
            if hashes == tuple(context.get_block(block).block_hash for block in part.blocks)
        ]


def note(spans: Iterable[tuple[SavePart, ...]], context: SchedulerContext) -> dict[bytes, Unsaved]:
    """Return the spans that can be known again, by the key of a part; while their request holds the blocks."""
    found = {}
    for parts in spans:
        known = [(part, hashes) for part in parts if (hashes := _hashes(part, context))]
        if known:
            found[known[0][0].key] = Unsaved(tuple(known))
    return found


class UnsavedSpans:
    """Those of all ended requests, the oldest first, and never more than the engine has blocks."""

    def __init__(self) -> None:
        self._spans: dict[bytes, Unsaved] = {}

    def __len__(self) -> int:
        """Return the number of spans; some may be gone."""
        return len(self._spans)

    def add(self, spans: Mapping[bytes, Unsaved], most: int) -> None:
        """Take spans of a request that has ended; beyond ``most`` the oldest go."""
        self._spans |= spans
        while len(self._spans) > most:
            del self._spans[next(iter(self._spans))]

    def take(
        self, room: int, all_free: bool, wanted: Callable[[SavePart], bool], context: SchedulerContext
    ) -> list[tuple[SavePart, ...]]:
        """Return spans of up to ``room`` blocks, of each what is ``wanted`` and not gone; those before are forgotten.

        With ``all_free`` one span may have more blocks, so that none waits for room that there never is.
        """
        taken: list[tuple[SavePart, ...]] = []
        while self._spans:
            key, unsaved = next(iter(self._spans.items()))
            parts = tuple(part for part in unsaved.left(context) if wanted(part))
            size = sum(len(part.blocks) for part in parts)
            if size > room and (taken or not all_free):
                break
            del self._spans[key]
            room -= size
            if parts:
                taken.append(parts)
        return taken

    def clear(self) -> None:
        """Forget all of them."""
        self._spans.clear()


def _hashes(part: SavePart, context: SchedulerContext) -> tuple[bytes, ...]:
    """Return the hashes of a part's blocks; none where one has none, as without a prefix cache."""
    found = [context.get_block(block).block_hash for block in part.blocks]
    known = tuple(each for each in found if each is not None)
    return known if len(known) == len(found) else ()
