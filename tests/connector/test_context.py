"""The scheduler's context on vLLM's own block pool, cache manager and scheduler."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not importable here; run with the engine's Python")

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.connector.multi_support import BLOCK, child, request, scheduler, step
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from kvserving_connector import compat
from kvserving_connector.vllm.context import SchedulerContext, SchedulerContextMixin

pytestmark = pytest.mark.engine
GROUP = 3
NULL = 0


class Pool:
    """A pool of 8 blocks, block 0 null, of which ``cached`` hold a prompt that ended: 1 is its first block."""

    def __init__(self, blocks: int = 8, cached: int = 3) -> None:
        self.pool = BlockPool(num_gpu_blocks=blocks, enable_caching=True, hash_block_size=BLOCK)
        self.context = SchedulerContext(self.pool)
        self.prompt = request("prompt", cached * BLOCK)
        if cached:
            taken = self.pool.get_new_blocks(cached)
            self.pool.cache_full_blocks(self.prompt, taken, 0, cached, BLOCK, GROUP)
            # As vLLM frees a request: the end of the prompt is to go first.
            self.pool.free_blocks(list(reversed(taken)))

    @property
    def queue(self) -> list[int]:
        return [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]

    def walk(self, after: Any = None) -> list[int]:
        return [view.block_id for view in self.context.iter_free_blocks(after)]

    def state(self) -> Any:
        return self.queue, [block.ref_cnt for block in self.pool.blocks], self.context.held


def test_a_view_says_what_a_block_holds() -> None:
    made = Pool()
    view = made.context.get_block(2)
    assert (view.block_id, view.ref_cnt, view.is_null) == (2, 0, False)
    assert view.hash_without_group == made.prompt.block_hashes[1]
    assert view.group_id == GROUP
    assert view.block_hash == make_block_hash_with_group_id(made.prompt.block_hashes[1], GROUP)
    assert view.num_tokens == 2 * BLOCK
    empty = made.context.get_block(5)
    assert (empty.block_hash, empty.hash_without_group, empty.group_id, empty.num_tokens) == (None, None, None, None)
    assert made.context.get_block(NULL).is_null


def test_a_touched_block_is_kept_for_whoever_asks_for_its_content() -> None:
    made = Pool()
    made.context.touch([1, made.context.get_block(2)])
    assert made.context.held == {1: 1, 2: 1}
    assert made.context.num_free_blocks == 5
    taken = {block.block_id for block in made.pool.get_new_blocks(5)}
    assert taken == {3, 4, 5, 6, 7}
    with pytest.raises(ValueError, match="free"):
        made.pool.get_new_blocks(1)
    (found,) = made.pool.get_cached_block(made.prompt.block_hashes[0], [GROUP])
    assert found.block_id == 1
    made.context.free_blocks([1, 2])
    assert made.context.held == {}
    assert made.context.num_free_blocks == 2


def test_freed_blocks_are_reused_in_the_order_given_those_without_content_first() -> None:
    made = Pool()
    made.context.touch([1, 2, 5, 6])
    made.context.free_blocks([2, 6, 1, 5])
    assert made.queue == [6, 5, 4, 7, 3, 2, 1]
    assert made.walk() == made.queue


def test_freed_blocks_are_reused_before_all_others_where_that_is_asked_for() -> None:
    made = Pool()
    assert made.queue == [4, 5, 6, 7, 3, 2, 1]
    made.context.touch([3, 2, 2, 5])
    made.context.free_blocks([5, 3, 2], reuse_first=True)
    # Block 2 has a reference left.
    assert made.queue == [5, 3, 4, 6, 7, 1]
    made.context.free_blocks([2], reuse_first=True)
    assert made.queue == [2, 5, 3, 4, 6, 7, 1]
    assert made.context.held == {}


def test_a_block_that_a_request_uses_stays_its_when_the_context_lets_go() -> None:
    made = Pool()
    made.pool.touch([made.pool.blocks[1]])
    made.context.touch([1])
    assert made.context.get_block(1).ref_cnt == 2
    made.context.free_blocks([1])
    assert made.context.get_block(1).ref_cnt == 1
    assert 1 not in made.queue


def test_null_blocks_are_skipped() -> None:
    made = Pool()
    before = made.state()
    made.context.touch([NULL, NULL])
    made.context.free_blocks([NULL, made.context.get_block(NULL)])
    assert made.state() == before
    made.context.touch([NULL, 1, NULL])
    assert made.context.held == {1: 1}
    made.context.free_blocks([NULL, 1])
    assert NULL not in made.walk()


def test_a_block_cannot_be_freed_twice() -> None:
    made = Pool()
    made.context.touch([1, 2, 2])
    before = made.state()
    with pytest.raises(ValueError, match="block 1 cannot be freed 2 times: of its 1 references 1 were taken here"):
        made.context.free_blocks([2, 1, 1])
    assert made.state() == before
    made.context.free_blocks([1, 2, 2])
    before = made.state()
    with pytest.raises(ValueError, match=r"block 2 .* given back before"):
        made.context.free_blocks([2])
    assert made.state() == before


def test_a_block_of_somebody_else_cannot_be_freed() -> None:
    made = Pool()
    (theirs,) = made.pool.get_new_blocks(1)
    made.context.touch([1])
    before = made.state()
    with pytest.raises(ValueError, match=f"block {theirs.block_id} .* never touched here"):
        made.context.free_blocks([1, theirs.block_id])
    assert made.state() == before


def test_a_reference_that_somebody_else_gave_back_is_noticed() -> None:
    made = Pool()
    made.context.touch([1])
    made.pool.free_blocks([made.pool.blocks[1]])
    before = made.state()
    with pytest.raises(ValueError, match="block 1 has 0 references and 1 were taken here"):
        made.context.free_blocks([1])
    assert made.state() == before


@pytest.mark.parametrize("foreign", [-1, 8, 10**9])
def test_a_block_of_no_pool_is_refused(foreign: int) -> None:
    made = Pool()
    before = made.state()
    for call in (
        lambda: made.context.touch([1, foreign]),
        lambda: made.context.free_blocks([foreign]),
        lambda: made.context.get_block(foreign),
        lambda: made.walk(foreign),
    ):
        with pytest.raises(ValueError, match=f"block {foreign} is not of this pool, whose blocks are 0 to 7"):
            call()
    assert made.state() == before


def test_a_walk_resumes_behind_its_cursor() -> None:
    made = Pool()
    assert made.walk() == made.queue == [4, 5, 6, 7, 3, 2, 1]
    for position, block in enumerate(made.queue):
        assert made.walk(block) == made.queue[position + 1 :]
        assert made.walk(made.context.get_block(block)) == made.queue[position + 1 :]


def test_a_walk_restarts_at_the_head_when_its_cursor_is_in_use() -> None:
    made = Pool()
    cursor = made.context.get_block(6)
    made.context.touch([6])
    assert made.walk(6) == made.walk(cursor) == made.walk(NULL) == [4, 5, 7, 3, 2, 1]


def test_a_walk_restarts_at_the_head_when_its_cursor_was_reused_meanwhile() -> None:
    made = Pool(blocks=4)
    cursor = made.context.get_block(2)
    assert made.walk(cursor) == [1]
    other = request("other", 3 * BLOCK)
    taken = made.pool.get_new_blocks(3)
    made.pool.cache_full_blocks(other, taken, 0, 3, BLOCK, GROUP)
    made.pool.free_blocks(taken)
    assert made.walk(cursor) == made.queue
    assert made.walk(made.context.get_block(2)) == made.queue[made.queue.index(2) + 1 :]


def test_an_empty_queue_has_no_blocks() -> None:
    made = Pool()
    made.context.touch(range(8))
    assert made.walk() == made.walk(3) == []
    assert made.context.num_free_blocks == 0


def test_every_block_can_be_taken_during_the_walk_that_finds_it() -> None:
    made = Pool()
    expected = made.queue
    found = []
    for view in made.context.iter_free_blocks():
        made.context.touch([view])
        found.append(view.block_id)
    assert found == expected
    assert made.context.num_free_blocks == 0


def test_a_resumed_walk_that_takes_blocks_does_not_go_back_to_the_head() -> None:
    made = Pool()
    for view in made.context.iter_free_blocks(7):
        made.context.touch([view])
    assert made.queue == [4, 5, 6, 7]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_walk_gives_each_block_once_and_misses_none_that_is_left_alone(data: Any) -> None:
    made = Pool(blocks=10, cached=4)
    alone, found = set(made.queue), []
    for view in made.context.iter_free_blocks():
        found.append(view.block_id)
        for block in data.draw(st.lists(st.sampled_from(range(1, 10)), max_size=4)):
            if made.context.held.get(block) and (block in found or data.draw(st.booleans())):
                made.context.free_blocks([block])
                # Freed ahead of the walk, a block takes those between with it: only the promise that it ends is left.
                alone = alone if block in found else set()
            else:
                made.context.touch([block])
            alone.discard(block)
    assert len(found) == len(set(found))
    assert alone <= set(found)
    held = made.context.held
    assert sorted(made.queue) == [block for block in range(1, 10) if block not in held]


class Base:
    """A connector base with the hooks of vLLM 0.30 and newer."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        self.calls.append("base manager")
        self.bind_gpu_block_pool(kv_cache_manager.block_pool)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.calls.append("base pool")


class Newer(SchedulerContextMixin, Base):
    def bind_scheduler_context(self, context: SchedulerContext) -> None:
        assert self.scheduler_context is context
        self.calls.append(f"bound, {context.block_ids('r')}")


class Older(SchedulerContextMixin):
    """On a base without hooks."""

    def __init__(self) -> None:
        self.contexts: list[SchedulerContext] = []

    def bind_scheduler_context(self, context: SchedulerContext) -> None:
        self.contexts.append(context)


class Manager:
    def __init__(self) -> None:
        self.block_pool = Pool().pool

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return ([4, 5], [])


def test_the_context_is_given_once_with_the_manager_and_the_bases_hooks_still_run() -> None:
    connector, manager = Newer(), Manager()
    assert connector.scheduler_context is None
    connector.bind_kv_cache_manager(manager)
    assert connector.calls == ["bound, ((4, 5), ())", "base manager", "base pool"]
    connector.bind_gpu_block_pool(manager.block_pool)
    assert connector.calls[3:] == ["base pool"]


def test_the_context_is_given_without_a_manager_where_vllm_binds_the_pool_alone() -> None:
    connector, manager = Older(), Manager()
    connector.bind_gpu_block_pool(manager.block_pool)
    (context,) = connector.contexts
    assert context is connector.scheduler_context
    assert context.num_free_blocks == 7
    assert context.block_ids("r") is None
    connector.bind_kv_cache_manager(manager)
    assert connector.contexts == [context]
    assert context.block_ids("r") == ((4, 5), ())


def test_a_second_pool_is_refused() -> None:
    connector = Older()
    connector.bind_gpu_block_pool(Pool().pool)
    with pytest.raises(ValueError, match="Older is bound to a block pool already"):
        connector.bind_kv_cache_manager(Manager())


def test_vllms_scheduler_gives_children_of_multi_connector_the_context_before_the_first_request() -> None:
    engine = scheduler([child("Contextual"), child("Scripted"), child("Contextual")], blocks=20)
    first, _, last = engine.connector._connectors
    for one in (first, last):
        (context,) = one.contexts
        assert context.num_blocks == 20
        assert context.num_free_blocks == 19
    assert first.bound == [engine.kv_cache_manager.block_pool]
    engine.add_request(request("a", 3 * BLOCK))
    step(engine)
    (context,) = first.contexts
    assert context.num_free_blocks == 16
    (blocks,) = engine.kv_cache_manager.get_block_ids("a")
    assert context.block_ids("a") == ((tuple(blocks),) if compat.probe().manager_bind else None)
    if compat.probe().manager_bind:
        assert context.block_ids("unknown") == ((),)
    assert [context.get_block(block).hash_without_group for block in blocks] == engine.requests["a"].block_hashes[:3]
    assert [context.get_block(block).ref_cnt for block in blocks] == [1, 1, 1]


def test_a_block_held_in_one_scheduler_is_not_given_to_its_next_request() -> None:
    engine = scheduler([child("Contextual")], blocks=6)
    (one,) = engine.connector._connectors
    (context,) = one.contexts
    engine.add_request(request("a", 3 * BLOCK))
    step(engine)
    (held, *_) = engine.kv_cache_manager.get_block_ids("a")[0]
    context.touch([held])
    engine.finish_requests("a", _aborted())
    engine.add_request(request("b", 4 * BLOCK))
    step(engine)
    assert held not in engine.kv_cache_manager.get_block_ids("b")[0]
    assert context.get_block(held).hash_without_group == request("a", 3 * BLOCK).block_hashes[0]
    context.free_blocks([held])
    assert held in [view.block_id for view in context.iter_free_blocks()]


def _aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED
