"""Sets of block positions as ranges: what reports of saved, failed and lost blocks are made of.

A range is ``(start, count)``. Every function takes ranges in any order, overlapping or empty, as tuples or lists, and
returns them sorted, merged and without empty ones, so that equal sets are equal tuples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Range = tuple[int, int]
"""First position and number of positions."""
Ranges = Iterable[Sequence[int]]
"""Ranges as they arrive: a report that travelled between processes may hold lists instead of tuples."""


def normal(ranges: Ranges) -> tuple[Range, ...]:
    """Return the ranges sorted, merged where they touch or overlap, and without empty ones.

    Raises ValueError for a negative start or count.
    """
    merged: list[Range] = []
    for start, count in sorted((start, count) for start, count in ranges):
        if start < 0 or count < 0:
            raise ValueError(f"range ({start}, {count}): a range is (start, count), and neither is negative")
        if count == 0:
            continue
        if merged and start <= _end(merged[-1]):
            first = merged[-1][0]
            merged[-1] = (first, max(_end(merged[-1]), start + count) - first)
        else:
            merged.append((start, count))
    return tuple(merged)


def union(*many: Ranges) -> tuple[Range, ...]:
    """Return the positions that are in any of the sets; none for no set."""
    return normal(item for ranges in many for item in ranges)


def intersection(a: Ranges, b: Ranges) -> tuple[Range, ...]:
    """Return the positions that are in both sets."""
    left, right = normal(a), normal(b)
    shared: list[Range] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        end = min(_end(left[i]), _end(right[j]))
        if start < end:
            shared.append((start, end - start))
        if _end(left[i]) < _end(right[j]):
            i += 1
        else:
            j += 1
    return tuple(shared)


def difference(a: Ranges, b: Ranges) -> tuple[Range, ...]:
    """Return the positions of ``a`` that are not in ``b``."""
    holes = normal(b)
    rest: list[Range] = []
    j = 0
    for start, count in normal(a):
        end = start + count
        while j < len(holes) and _end(holes[j]) <= start:
            j += 1
        k = j
        while k < len(holes) and holes[k][0] < end:
            if start < holes[k][0]:
                rest.append((start, holes[k][0] - start))
            start = _end(holes[k])
            k += 1
        if start < end:
            rest.append((start, end - start))
    return tuple(rest)


def of(positions: Iterable[int]) -> tuple[Range, ...]:
    """Return the ranges that cover exactly these positions. Raises ValueError for a negative one."""
    return normal((position, 1) for position in positions)


def positions(ranges: Ranges) -> Iterator[int]:
    """Yield every position once, in ascending order."""
    for start, count in normal(ranges):
        yield from range(start, start + count)


def _end(item: Range) -> int:
    return item[0] + item[1]
