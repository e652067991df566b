"""What is stored and promised when a model has several cache groups with blocks of different sizes.

Words: a *chunk* is ``hybrid_chunk_size`` tokens. A *span* is the smallest step at which every group has whole blocks
and, where it divides into them, whole chunks; prefixes are stored and promised in spans. A *part* is what one group
keeps of one span.

A block larger than a chunk is stored whole, with its last chunk: the bytes of a page are not ordered by token (layers
interleave heads, keys and values, and a state has no tokens at all), so nothing smaller than a block can be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import lcm


class GroupKind(StrEnum):
    """What a cache group needs to go on after a prefix."""

    FULL = "full"
    """Every block of the prefix."""
    SLIDING_WINDOW = "sliding_window"
    """The blocks of the window's tail."""
    MAMBA = "mamba"
    """The state at the end of the prefix: its last block."""


@dataclass(frozen=True)
class Group:
    """A cache group: its kind, the tokens of a block, and of the window when it has one."""

    kind: GroupKind
    block_tokens: int
    window: int | None = None


@dataclass(frozen=True)
class Slice:
    """What a chunk covers in a group: ``tokens`` tokens in ``blocks``, from token ``first_token`` of the first one."""

    group: int
    blocks: range
    first_token: int
    tokens: int


@dataclass(frozen=True)
class HybridOffloadPlanner:
    """Sizes of spans and parts, computed once by ``make``, and the arithmetic of prefixes over them.

    Groups, spans and blocks are counted from 0; blocks are positions in a request's block table of their group.
    """

    groups: tuple[Group, ...]
    hash_block_tokens: int
    max_model_len: int
    chunk_tokens: int
    span_tokens: int
    hashes_per_span: int
    chunks_per_block: tuple[int | None, ...]
    """Chunks that a block is split into; None for a group whose blocks are smaller or that is kept whole."""
    blocks_in_chunk: tuple[int | None, ...]
    """Whole blocks in a chunk; None for a group whose blocks are larger or that is kept whole."""
    kept_whole: tuple[int, ...]
    """Groups whose blocks neither divide a chunk nor are divided by it; their blocks are the step of what is stored."""
    warnings: tuple[str, ...]
    """For the log: one for each group kept whole, with the tokens needed before anything is stored."""

    @staticmethod
    def make(
        groups: Sequence[Group],
        *,
        hash_block_tokens: int,
        max_model_len: int,
        hybrid_chunk_size: int | None = None,
    ) -> HybridOffloadPlanner:
        """Compute the plan; sizes are in tokens, and None as chunk size is the smallest at which all groups meet.

        Raises ValueError when a size is not positive, a block is no multiple of a hash block, a window is missing, or
        with the chunk size nothing could ever be stored; the text names the nearest size that works, if there is one.
        """
        _check_groups(groups, hash_block_tokens, max_model_len)
        blocks = [group.block_tokens for group in groups]
        chunk = lcm(*blocks) if hybrid_chunk_size is None else hybrid_chunk_size
        _check_chunk(chunk, hybrid_chunk_size is not None, blocks, hash_block_tokens, max_model_len)
        span = _span(chunk, blocks)
        kept = tuple(index for index, block in enumerate(blocks) if block % chunk and chunk % block)
        return HybridOffloadPlanner(
            groups=tuple(groups),
            hash_block_tokens=hash_block_tokens,
            max_model_len=max_model_len,
            chunk_tokens=chunk,
            span_tokens=span,
            hashes_per_span=span // hash_block_tokens,
            chunks_per_block=tuple(None if block % chunk else block // chunk for block in blocks),
            blocks_in_chunk=tuple(None if chunk % block else chunk // block for block in blocks),
            kept_whole=kept,
            warnings=tuple(
                f"hybrid_chunk_size {chunk} neither divides nor is a multiple of the {blocks[index]} tokens of a block"
                f" in cache group {index}: the group is kept in whole blocks, and nothing is stored of a prompt"
                f" shorter than {span} tokens"
                for index in kept
            ),
        )

    def spans(self, tokens: int) -> int:
        """Return how many whole spans this many tokens hold."""
        return tokens // self.span_tokens

    def limit(self, num_tokens: int) -> int:
        """Return the longest prefix that may be promised to a request: at least one token is left to compute."""
        return max(0, num_tokens - 1) // self.span_tokens * self.span_tokens

    def blocks_per_part(self, group: int) -> int:
        """Return the blocks in each part of the group, which is the slots that a part takes."""
        return len(self.part_blocks(group, 0))

    def part_blocks(self, group: int, span: int) -> range:
        """Return the blocks of the request that the group's part of this span holds.

        Those that going on at the end of this or of a later span can need: all, the last for a state, and for a window
        those within its reach from the end of the span.
        """
        settings = self.groups[group]
        end = (span + 1) * self.span_tokens
        first = max(span * self.span_tokens, _first_needed(settings, end))
        stop = end // settings.block_tokens
        return range(min(first // settings.block_tokens, stop - 1), stop)

    def needed(self, group: int, prefix_tokens: int) -> range:
        """Return the spans whose parts the group needs to go on at ``prefix_tokens``, which is a number of spans."""
        first = max(0, _first_needed(self.groups[group], prefix_tokens))
        return range(first // self.span_tokens, prefix_tokens // self.span_tokens)

    def prefix_tokens(self, present: Callable[[int, int], bool], num_tokens: int, local_tokens: int = 0) -> int:
        """Return the longest prefix, counted from token 0 and at most ``limit``, that a request can go on from.

        ``present(group, span)`` says whether the part is there; it is asked at most once for each, and not for spans
        within the ``local_tokens`` that the engine holds itself. A result of at most ``local_tokens`` means that there
        is nothing to load.
        """
        local = self.spans(local_tokens)
        full = [index for index, group in enumerate(self.groups) if group.kind is GroupKind.FULL]
        tails = [index for index in range(len(self.groups)) if index not in full]
        best = self.spans(self.limit(num_tokens))
        for span in range(local, best):
            if not all(present(index, span) for index in full):
                best = span
                break
        # From here to `best` a group's parts are there. A gap fails every longer prefix that reaches back to it, so
        # that the search goes on before the gap, and the other groups are looked at again from there.
        reached = dict.fromkeys(tails, best)
        settled = False
        while not settled:
            settled = True
            for index in tails:
                first = max(local, self.needed(index, best * self.span_tokens).start)
                span = min(reached[index], best)
                while span > first and present(index, span - 1):
                    span -= 1
                reached[index] = span
                if span > first:
                    best, settled = span - 1, False
        return best * self.span_tokens

    def blocks_to_load(self, group: int, prefix_tokens: int, local_tokens: int) -> list[tuple[int, int, int]]:
        """Return ``(span, block in the request's table, block within the part)`` for what the group has to load.

        That is what going on at ``prefix_tokens`` needs and the engine, which holds ``local_tokens`` itself, lacks; a
        block that it holds only in part is loaded whole.
        """
        settings = self.groups[group]
        if prefix_tokens <= local_tokens:
            return []
        first = max(local_tokens, _first_needed(settings, prefix_tokens)) // settings.block_tokens
        start, stop = self.part_blocks(group, 0).start, self.span_tokens // settings.block_tokens
        return [
            (span, span * stop + block, block - start)
            for span in self.needed(group, prefix_tokens)
            for block in range(max(start, first - span * stop), stop)
        ]

    def slices(self, chunk: int) -> tuple[Slice, ...]:
        """Return what the chunk covers in each group."""
        start = chunk * self.chunk_tokens
        return tuple(
            Slice(
                index,
                range(start // group.block_tokens, -(-(start + self.chunk_tokens) // group.block_tokens)),
                start % group.block_tokens,
                self.chunk_tokens,
            )
            for index, group in enumerate(self.groups)
        )


def _first_needed(group: Group, prefix_tokens: int) -> int:
    """Return the first token whose block is needed to go on at ``prefix_tokens``; may be negative for a window."""
    if group.kind is GroupKind.MAMBA:
        return prefix_tokens - group.block_tokens
    if group.kind is GroupKind.SLIDING_WINDOW:
        assert group.window is not None
        return prefix_tokens - group.window + 1
    return 0


def _span(chunk: int, blocks: Sequence[int]) -> int:
    return lcm(*(block if chunk % block else chunk for block in blocks))


def _check_groups(groups: Sequence[Group], hash_block_tokens: int, max_model_len: int) -> None:
    if not groups:
        raise ValueError("groups is empty: a model without cache groups has nothing to store")
    for name, value in (("hash_block_tokens", hash_block_tokens), ("max_model_len", max_model_len)):
        if value < 1:
            raise ValueError(f"{name} is {value}: it must be positive")
    for index, group in enumerate(groups):
        name = f"groups[{index}].block_tokens"
        if group.block_tokens < 1:
            raise ValueError(f"{name} is {group.block_tokens}: it must be positive")
        if group.block_tokens % hash_block_tokens:
            raise ValueError(
                f"{name} is {group.block_tokens}, no multiple of hash_block_tokens {hash_block_tokens}: a prefix that"
                " ends with such a block has no hash to be found by"
            )
        windowed = group.kind is GroupKind.SLIDING_WINDOW
        if windowed and (group.window is None or group.window < 1):
            raise ValueError(f"groups[{index}].window is {group.window}: a sliding window has at least one token")


def _check_chunk(
    chunk: int, configured: bool, blocks: Sequence[int], hash_block_tokens: int, max_model_len: int
) -> None:
    """Refuse a chunk size with which nothing could be stored; when it is not ``configured``, it is the smallest."""
    if chunk < 1:
        reason = "it must be positive"
    elif chunk < hash_block_tokens:
        reason = f"it is below the {hash_block_tokens} tokens of a hash block, and a finer chunk has no hash of its own"
    elif (step := max(chunk, _span(chunk, blocks))) >= max_model_len:
        sizes = ", ".join(str(block) for block in sorted(set(blocks)))
        reason = (
            f"with max_model_len {max_model_len} at most {max_model_len - 1} tokens of a request are stored, and with"
            f" blocks of {sizes} tokens nothing is stored below {step}"
        )
    else:
        return
    size = f"hybrid_chunk_size is {chunk}"
    if not configured:
        size = f"hybrid_chunk_size is not set, and {chunk} is the smallest"
    nearest = _nearest(chunk, blocks, hash_block_tokens, max_model_len)
    way_out = f"the nearest size that works is {nearest}"
    if nearest is None:
        way_out = (
            f"no size works, as the blocks alone end together only every {lcm(*blocks)} tokens: raise max_model_len"
            " beyond that, have states kept at block boundaries (--mamba-cache-mode align), or leave this connector out"
        )
    raise ValueError(f"{size}: {reason}; {way_out}")


def _nearest(chunk: int, blocks: Sequence[int], hash_block_tokens: int, max_model_len: int) -> int | None:
    """Return the size nearest to ``chunk`` that keeps no group whole and stores something; None when there is none."""
    common = lcm(*blocks)
    # Sizes that keep no group whole divide the largest block or are multiples of every block.
    below = min(max(chunk, 0), max_model_len - 1) // common * common
    multiples = {below, below + common}
    sizes = multiples.union(size for size in range(hash_block_tokens, max(blocks) + 1) if max(blocks) % size == 0)
    working = [
        size
        for size in sizes
        if size >= hash_block_tokens
        and size % hash_block_tokens == 0
        and max(size, _span(size, blocks)) < max_model_len
        and all(block % size == 0 or size % block == 0 for block in blocks)
    ]
    return min(working, key=lambda size: (abs(size - chunk), size), default=None)
