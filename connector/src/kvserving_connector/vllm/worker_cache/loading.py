"""From a promise to the blocks that are filled, as one message for all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from kvserving_connector.core.chunk_hashes import part_key
from kvserving_connector.core.planner import HybridOffloadPlanner
from kvserving_connector.core.ranges import Range, intersection
from kvserving_connector.vllm.worker_cache.messages import Load


def plan_load(
    planner: HybridOffloadPlanner,
    request_id: str,
    span_keys: Sequence[bytes],
    tables: Sequence[Sequence[int]],
    prefix: int,
    local: int,
) -> Load:
    """Return what fills the request's blocks from ``local`` tokens, which the engine holds itself, to ``prefix``.

    ``tables`` are the request's blocks by cache group of the planner. Blocks come in the order of the groups.
    """
    keys: list[bytes] = []
    parts: list[int] = []
    groups: list[int] = []
    indices: list[int] = []
    block_ids: list[int] = []
    positions: list[int] = []
    for group, table in enumerate(tables):
        last = -1
        for span, position, index in planner.blocks_to_load(group, prefix, local):
            if span != last:
                last = span
                keys.append(part_key(span_keys[span], group))
            parts.append(len(keys) - 1)
            groups.append(group)
            indices.append(index)
            block_ids.append(table[position])
            positions.append(position)
    return Load(
        request_id, tuple(keys), tuple(parts), tuple(groups), tuple(indices), tuple(block_ids), tuple(positions)
    )


def range_of(planner: HybridOffloadPlanner, load: Load, index: int) -> Range:
    """Return the range of one block of a load, in hash blocks."""
    width = planner.groups[load.groups[index]].block_tokens // planner.hash_block_tokens
    return load.positions[index] * width, width


def keys_within(planner: HybridOffloadPlanner, load: Load, ranges: Sequence[Range]) -> set[bytes]:
    """Return the parts of a load that have blocks within ``ranges``, which are in hash blocks."""
    return {
        load.keys[part]
        for index, part in enumerate(load.parts)
        if intersection(ranges, (range_of(planner, load, index),))
    }
