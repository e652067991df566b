"""Slots of a staging pool: where one prompt's KV lies as rows, and who may still read it.

A slot is a header and rows. A row is one block with its part of every region (a layer's cache), one after the other, so
that the blocks from any one to the last are one range. The header's first two words hold the slot's generation: the
first is written before the rows and the second after them. Whoever finds its generation in the second before it reads
and in the first after it has read has what was written for it, whatever happened to the pool meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

HEADER_BYTES = 64
ALIGNMENT = 256
STAGED_KEY = "remote_staged"
"""Key of a slot in the transfer parameters."""

# What JSON carries through any relay as it is.
MAX_GENERATION = 2**53 - 1
_MAX_BYTES = 2**48


@dataclass(frozen=True)
class Slot:
    """One prompt's place in the pool of every rank. Later slots of the engine have higher generations."""

    offset: int
    generation: int
    rows: int
    row_bytes: int

    @property
    def rows_offset(self) -> int:
        """Where the first row begins."""
        return self.offset + HEADER_BYTES

    @property
    def end(self) -> int:
        """Where the last row ends."""
        return self.rows_offset + self.rows * self.row_bytes

    def params(self) -> dict[str, int]:
        """Return the slot as the transfer parameters carry it."""
        return asdict(self)

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Slot | None:
        """Return the slot of transfer parameters, None without one. Their form must have been judged."""
        value = params.get(STAGED_KEY)
        return cls(**value) if value is not None else None


_NAMES = frozenset(field.name for field in fields(Slot))


def is_slot(value: object) -> bool:
    """Whether ``value`` is what ``Slot.params`` returns for a slot that can be."""
    if not isinstance(value, Mapping) or set(value) != _NAMES:
        return False
    if not all(type(number) is int and number >= 0 for number in value.values()):
        return False
    slot = Slot(**value)
    return slot.generation <= MAX_GENERATION and slot.rows > 0 and slot.row_bytes > 0 and slot.end <= _MAX_BYTES


def slot_bytes(rows: int, row_bytes: int) -> int:
    """Return the bytes of the pool that a slot of so many rows takes."""
    return -(-(HEADER_BYTES + rows * row_bytes) // ALIGNMENT) * ALIGNMENT


def runs(blocks: Sequence[int]) -> int:
    """Return how many ranges the blocks are: a transfer takes as many descriptors in each region."""
    return sum(1 for index, block in enumerate(blocks) if index == 0 or block != blocks[index - 1] + 1)


class RangePool:
    """Ranges of one pool: taken where they fit first, and joined with their neighbours when given back."""

    def __init__(self, capacity: int) -> None:
        """Raise ValueError for a pool of less than one byte."""
        if capacity < 1:
            raise ValueError(f"a pool of {capacity} bytes has no ranges")
        self.capacity = capacity
        self._holes: list[tuple[int, int]] = [(0, capacity)]
        self._taken: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return sum(self._taken.values())

    def take(self, size: int) -> int | None:
        """Return the offset of ``size`` >= 1 bytes that nobody else has, None when no hole is large enough."""
        if size < 1:
            raise ValueError(f"a range of {size} bytes cannot be taken")
        for index, (offset, length) in enumerate(self._holes):
            if length >= size:
                rest = [(offset + size, length - size)] if length > size else []
                self._holes[index : index + 1] = rest
                self._taken[offset] = size
                return offset
        return None

    def free(self, offset: int) -> None:
        """Give back the range that was taken at ``offset``. Raises KeyError when there is none."""
        size = self._taken.pop(offset)
        index = bisect_left(self._holes, (offset, 0))
        if index < len(self._holes) and self._holes[index][0] == offset + size:
            size += self._holes.pop(index)[1]
        if index > 0 and sum(self._holes[index - 1]) == offset:
            offset, before = self._holes.pop(index - 1)
            size += before
        insort(self._holes, (offset, size))


class Headers:
    """Headers in one rank's pool that may still say that a slot is whole.

    A header that lies inside a new slot must be overwritten before the new slot's first row: whoever reads the old slot
    would otherwise find it whole after a part of it had been written over.
    """

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}

    def overwritten_by(self, slot: Slot) -> list[int]:
        """Note the header of ``slot`` and return where those of all slots lie that it shares a byte with."""
        hit = [at for at, end in self._ends.items() if at < slot.end and slot.offset < end and at != slot.offset]
        for at in hit:
            del self._ends[at]
        self._ends[slot.offset] = slot.end
        return sorted(hit)
