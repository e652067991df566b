"""The scheduler's block pool as a connector may use it, without vLLM's block types.

A connector class that puts ``SchedulerContextMixin`` before its base gets one ``SchedulerContext`` from vLLM's binding
hooks: ``bind_kv_cache_manager`` (0.30 and newer), ``bind_gpu_block_pool`` (older).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id


@dataclass(frozen=True, slots=True)
class KVCacheBlockView:
    """What a block was when it was looked at; ask the context again for what it is now."""

    block_id: int
    ref_cnt: int
    """References to the block, all holders'. At 0 the block is in the free queue."""
    is_null: bool
    """Whether it stands for no memory at all. Its references are not counted."""
    block_hash: bytes | None
    """Hash of the block's content with its cache group; None while the block is not in the prefix cache."""
    group_id: int | None
    """Index of the cache group, from ``block_hash``."""
    hash_without_group: bytes | None
    """The hash as ``Request.block_hashes`` has it, from ``block_hash``."""
    num_tokens: int | None = None
    """Tokens of the prefix that the hash ends; None without a hash, or where vLLM does not say."""


Block = int | KVCacheBlockView
"""A block by its id; a view stands for the block that has its id now."""


class SchedulerContext:
    """The block pool of one scheduler. For the scheduler's thread only, like the pool.

    Null blocks are skipped everywhere. References are counted: only those that were taken with ``touch`` can be given
    back with ``free_blocks``. A call that raises has changed nothing.
    """

    def __init__(self, block_pool: Any, kv_cache_manager: Any = None) -> None:
        """Take vLLM's ``BlockPool`` and, where there is one, the ``KVCacheManager`` that it belongs to."""
        self._pool = block_pool
        self._manager = kv_cache_manager
        self._taken: Counter[int] = Counter()
        self._returned: set[int] = set()

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool; ids are 0 to one less."""
        return len(self._pool.blocks)

    @property
    def null_block_id(self) -> int:
        """The id that stands for no memory in requests' tables."""
        return int(self._pool.null_block.block_id)

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the free queue. Those that are held through this context are not free."""
        return int(self._pool.get_num_free_blocks())

    @property
    def held(self) -> dict[int, int]:
        """References taken here and not given back, by block id."""
        return dict(self._taken)

    def get_block(self, block_id: int) -> KVCacheBlockView:
        """Return what the block is now. Raises ValueError when the pool has no such block."""
        return _view(self._block(block_id))

    def touch(self, blocks: Iterable[Block]) -> None:
        """Take one reference to each block, twice to one that is named twice; a free block leaves the free queue.

        A held block keeps its content and its place in the prefix cache, and no request gets it as a new one. Raises
        ValueError when the pool has no such block.
        """
        found = [block for block in map(self._block, blocks) if not block.is_null]
        self._pool.touch(found)
        for block in found:
            self._taken[block.block_id] += 1
            self._returned.discard(block.block_id)

    def free_blocks(self, blocks: Iterable[Block], *, reuse_first: bool = False) -> None:
        """Give back one reference to each block; a block without another enters the free queue.

        Blocks with a hash join its end in the given order, so that the first is reused first; those without join its
        front, and with ``reuse_first`` so do all. Raises ValueError for a block that the pool does not have, and for a
        reference that was not taken here or was given back before.
        """
        found = [block for block in map(self._block, blocks) if not block.is_null]
        for block_id, number in Counter(block.block_id for block in found).items():
            self._require_held(block_id, number)
        self._pool.free_blocks(found)
        if reuse_first:
            queue = self._pool.free_block_queue
            queued = [block for block in {block.block_id: block for block in found}.values() if _queued(block)]
            for block in queued:
                queue.remove(block)
            queue.prepend_n(queued)
        for block in found:
            self._taken[block.block_id] -= 1
            if not self._taken[block.block_id]:
                del self._taken[block.block_id]
                self._returned.add(block.block_id)

    def iter_free_blocks(self, after: Block | None = None) -> Iterator[KVCacheBlockView]:
        """Walk the free queue, the block that is reused next first. Each block comes at most once per walk.

        ``after`` resumes an earlier walk behind the block that it ended with. When that block has left the free queue,
        or was given as a view and holds other content by now, the walk starts at the head. A block that was used and
        freed again without a change is where it was queued last, and the walk resumes there: start at the head when a
        walk ends, so that nothing is passed over for good.

        Blocks may be touched and freed while the walk goes on, but one that is freed again ahead of it may be passed
        over; when the next block has left the queue, it goes on at the head. Raises ValueError when the pool has no
        block ``after``.
        """
        head = self._pool.free_block_queue.fake_free_list_head
        block = head if after is None else self._block(after)
        if after is not None and not _resumable(block, after):
            block = head
        return self._walk(head, block)

    def block_ids(self, request_id: str) -> tuple[tuple[int, ...], ...] | None:
        """Return a request's blocks by cache group, null blocks included; empty groups for an unknown request.

        None when no KV cache manager is bound (vLLM before 0.30).
        """
        if self._manager is None:
            return None
        return tuple(tuple(ids) for ids in self._manager.get_block_ids(request_id))

    def _walk(self, head: Any, block: Any) -> Iterator[KVCacheBlockView]:
        tail = self._pool.free_block_queue.fake_free_list_tail
        given: set[int] = set()
        block = block.next_free_block
        while block is not tail:
            following = block.next_free_block
            if block.block_id not in given:
                given.add(block.block_id)
                yield _view(block)
            # Whoever walks had the turn meanwhile, so that either block may have left the queue.
            if following is tail:
                block = block.next_free_block if _queued(block) else tail
            else:
                block = following if following.next_free_block is not None else head.next_free_block

    def _block(self, block: Block) -> Any:
        block_id = block.block_id if isinstance(block, KVCacheBlockView) else block
        blocks = self._pool.blocks
        # Without the lower bound a negative id would name a block from the end.
        if not 0 <= block_id < len(blocks):
            raise ValueError(f"block {block_id} is not of this pool, whose blocks are 0 to {len(blocks) - 1}")
        return blocks[block_id]

    def _require_held(self, block_id: int, number: int) -> None:
        taken = self._taken[block_id]
        total = self._pool.blocks[block_id].ref_cnt
        if number > taken:
            if taken or block_id in self._returned:
                why = "it was given back before: free a block as often as it was touched"
            else:
                why = "it was never touched here: free only what was touched through this context"
            raise ValueError(
                f"block {block_id} cannot be freed {number} times: of its {total} references {taken} were taken here, "
                f"and {why}"
            )
        if total < taken:
            raise ValueError(
                f"block {block_id} has {total} references and {taken} were taken here: another user of the pool freed "
                "what it had not touched"
            )


class SchedulerContextMixin:
    """Gives a connector ``scheduler_context``; put it before the connector's base class.

    Serves every version of vLLM's hooks, those of a base class without them too. A class that overrides a hook must
    call this one.
    """

    scheduler_context: SchedulerContext | None = None
    """None in the worker's half, and before vLLM binds the scheduler's."""

    def bind_scheduler_context(self, context: SchedulerContext) -> None:
        """Called once in the scheduler's half: after the KV cache manager was made, before the first request."""

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """vLLM's hook of 0.30 and newer."""
        # First: the base class calls the other hook, which must not bind without the manager.
        self._bind(kv_cache_manager.block_pool, kv_cache_manager)
        inherited = getattr(super(), "bind_kv_cache_manager", None)
        if inherited is not None:
            inherited(kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """vLLM's hook before 0.30, called by the newer one as well."""
        self._bind(gpu_block_pool, None)
        inherited = getattr(super(), "bind_gpu_block_pool", None)
        if inherited is not None:
            inherited(gpu_block_pool)

    def _bind(self, pool: Any, manager: Any) -> None:
        context = self.scheduler_context
        if context is None:
            self.scheduler_context = context = SchedulerContext(pool, manager)
            self.bind_scheduler_context(context)
        elif context._pool is not pool:
            raise ValueError(
                f"{type(self).__name__} is bound to a block pool already and was given another: make one connector "
                "for each scheduler"
            )
        elif context._manager is None:
            context._manager = manager


def _view(block: Any) -> KVCacheBlockView:
    key = block.block_hash
    return KVCacheBlockView(
        block_id=block.block_id,
        ref_cnt=block.ref_cnt,
        is_null=block.is_null,
        block_hash=None if key is None else bytes(key),
        group_id=None if key is None else get_group_id(key),
        hash_without_group=None if key is None else bytes(get_block_hash(key)),
        num_tokens=getattr(block, "block_hash_num_tokens", None),
    )


def _queued(block: Any) -> bool:
    return block.ref_cnt == 0 and block.next_free_block is not None


def _resumable(block: Any, after: Block) -> bool:
    if not _queued(block):
        return False
    return not isinstance(after, KVCacheBlockView) or after.block_hash == block.block_hash
