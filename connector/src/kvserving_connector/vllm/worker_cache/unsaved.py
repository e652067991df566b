"""Parts of ended requests that there was no room to save: free blocks, which hold the KV until they are reused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvserving_connector.vllm.context import SchedulerContext
from kvserving_connector.vllm.worker_cache.messages import SavePart


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A part, and the hashes that its blocks had while their request held them."""

    part: SavePart
    hashes: tuple[bytes, ...]

    def holds(self, context: SchedulerContext) -> bool:
        """Whether the blocks still are what they were: vLLM takes a block's hash when it gives the block to another."""
        return self.hashes == tuple(context.get_block(block).block_hash for block in self.part.blocks)


def note(parts: Iterable[SavePart], context: SchedulerContext) -> dict[bytes, Unsaved]:
    """Return the parts, by key, whose blocks can be known again. To be called while their request holds the blocks."""
    found = {}
    for part in parts:
        hashes = [context.get_block(block).block_hash for block in part.blocks]
        # None without a prefix cache.
        known = tuple(each for each in hashes if each is not None)
        if len(known) == len(hashes):
            found[part.key] = Unsaved(part, known)
    return found


class UnsavedParts:
    """Those of all ended requests, the oldest first, and never more than the engine has blocks."""

    def __init__(self) -> None:
        self._parts: dict[bytes, Unsaved] = {}

    def __len__(self) -> int:
        """Return the number of parts; some may be gone."""
        return len(self._parts)

    def add(self, parts: Mapping[bytes, Unsaved], most: int) -> None:
        """Take parts of a request that has ended; beyond ``most`` the oldest go."""
        self._parts |= parts
        while len(self._parts) > most:
            del self._parts[next(iter(self._parts))]

    def take(
        self, room: int, all_free: bool, wanted: Callable[[SavePart], bool], context: SchedulerContext
    ) -> list[SavePart]:
        """Return parts of up to ``room`` blocks that are ``wanted`` and not gone; those before them are forgotten.

        With ``all_free`` one part may have more blocks, so that none waits for room that there never is.
        """
        taken: list[SavePart] = []
        while self._parts:
            key, unsaved = next(iter(self._parts.items()))
            size = len(unsaved.part.blocks)
            if size > room and (taken or not all_free):
                break
            del self._parts[key]
            if wanted(unsaved.part) and unsaved.holds(context):
                taken.append(unsaved.part)
                room -= size
        return taken

    def clear(self) -> None:
        """Forget all of them."""
        self._parts.clear()
