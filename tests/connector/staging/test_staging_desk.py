"""The scheduler's desk: who gets a slot, when it is handed out, and that it comes back whatever happens."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from kvserving_connector.core.staging import STAGED_KEY, Slot, slot_bytes
from kvserving_connector.core.staging_cost import CostBook, Sample, Way
from kvserving_connector.core.staging_desk import Direct, Layout, StagingDesk

BLOCK = 16
ROW = 640
LAYOUT = Layout(row_bytes=ROW, rows_per_block=1, regions=4)


def desk(*, slots: int = 2, blocks: int = 3, ranks: int = 1, costs: CostBook | None = None) -> StagingDesk:
    return StagingDesk(
        capacity=slots * slot_bytes(blocks, ROW),
        layout=LAYOUT,
        block_tokens=BLOCK,
        ranks=ranks,
        generation=1,
        costs=costs,
    )


def prompt(name: str, tokens: int = 40, params: Any = None) -> Any:
    return SimpleNamespace(
        request_id=name,
        kv_transfer_params={"do_remote_decode": True} if params is None else params,
        num_prompt_tokens=tokens,
        num_computed_tokens=0,
    )


def answer(blocks: list[int]) -> dict[str, Any]:
    return {"do_remote_prefill": True, "remote_block_ids": (blocks,), "remote_num_tokens": 40}


def staged(of: StagingDesk, name: str, blocks: list[int]) -> Slot | None:
    """Let a whole prompt be computed in one step; return the slot that it was given."""
    one = prompt(name)
    of.allocated(one)
    of.blocks(name, blocks, whole=True)
    work = of.step({name: one.num_prompt_tokens}).gather.get(name)
    return work.slot if work is not None else None


def test_a_prompt_is_gathered_in_the_step_that_completes_it() -> None:
    of, one = desk(), prompt("a")
    of.allocated(one)
    of.blocks("a", [9, 4], whole=True)
    assert not of.step({"a": 24})
    one.num_computed_tokens = 24
    of.blocks("a", [7, 8], whole=False)
    step = of.step({"a": 16, "other": 5})
    assert step.gather["a"].blocks == (9, 4, 7)
    assert step.gather["a"].slot == Slot(0, 1, 3, ROW)
    assert not of.step({"a": 1})


def test_a_handed_out_slot_frees_the_blocks_and_names_none() -> None:
    of = desk()
    slot = staged(of, "a", [9, 4, 7])
    assert slot is not None
    delay, params = of.finished("a", True, answer([9, 4, 7]))
    assert params is not None
    assert (delay, params["remote_block_ids"], params[STAGED_KEY]) == (False, [[]], slot.params())
    assert params["remote_num_tokens"] == 40
    assert of.handed_out == 1


def test_a_slot_comes_back_when_every_rank_is_through() -> None:
    of = desk(ranks=2)
    staged(of, "a", [1, 2, 3])
    of.finished("a", True, answer([1, 2, 3]))
    of.sent({"a": 1, "unknown": 2})
    assert (of.handed_out, of.used_bytes) == (1, slot_bytes(3, ROW))
    of.sent({"a": 1})
    assert (of.handed_out, of.used_bytes) == (0, 0)


@pytest.mark.parametrize(("delay", "params"), [(False, None), (False, {}), (True, None)])
def test_a_prompt_that_nobody_will_fetch_gives_its_slot_back_at_once(delay: bool, params: Any) -> None:
    of = desk()
    staged(of, "a", [1, 2, 3])
    assert of.finished("a", delay, params) == (delay, params)
    assert (of.handed_out, of.used_bytes) == (0, 0)
    assert of.step({}).dropped == ("a",)


def test_a_full_pool_leaves_the_blocks_alone_and_says_so() -> None:
    of = desk(slots=1)
    assert staged(of, "a", [1, 2, 3]) is not None
    assert staged(of, "b", [4, 5, 6]) is None
    assert of.finished("b", True, answer([4, 5, 6])) == (True, answer([4, 5, 6]))
    one = prompt("c", tokens=20 * BLOCK)
    of.allocated(one)
    of.blocks("c", list(range(20)), whole=True)
    assert not of.step({"c": 20 * BLOCK})
    tally = of.drain()
    assert tally is not None
    assert tally.direct == [Direct.FULL, Direct.LARGE]
    assert (tally.staged, tally.saved) == ([3 * ROW], [LAYOUT.regions])
    assert of.drain() is None


def test_a_prompt_that_is_computed_again_is_gathered_again_in_its_place() -> None:
    of, one = desk(slots=1), prompt("a")
    of.allocated(one)
    of.blocks("a", [1, 2, 3], whole=True)
    first = of.step({"a": 40}).gather["a"].slot
    of.allocated(one)
    of.blocks("a", [7, 6, 5], whole=True)
    again = of.step({"a": 40}).gather["a"]
    assert (again.slot.offset, again.blocks) == (first.offset, (7, 6, 5))
    assert again.slot.generation > first.generation
    assert of.used_bytes == slot_bytes(3, ROW)


def test_a_prompt_that_was_preempted_is_not_handed_out_before_it_was_gathered_again() -> None:
    of = desk()
    staged(of, "a", [1, 2, 3])
    of.blocks("a", [7, 6, 5], whole=True)
    assert of.finished("a", True, answer([7, 6, 5])) == (True, answer([7, 6, 5]))
    assert of.used_bytes == 0


@pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": True}, {"do_remote_decode": False}])
def test_requests_that_nobody_fetches_are_left_alone(params: Any) -> None:
    of, one = desk(), prompt("a")
    one.kv_transfer_params = params
    of.allocated(one)
    of.blocks("a", [1, 2, 3], whole=True)
    assert not of.step({"a": 40})


def test_the_cheaper_way_is_taken_and_the_reason_counted() -> None:
    costs = CostBook()
    for _ in range(40):
        costs.observe(Sample(Way.STAGED, 3 * ROW, 1, 0.5))
        costs.observe(Sample(Way.DIRECT, 3 * ROW, 12, 1e-4))
    of = desk(costs=costs)
    assert staged(of, "a", [1, 3, 5]) is None
    assert (tally := of.drain()) is not None
    assert tally.direct == [Direct.COST]
    of.observed([Sample(Way.STAGED, 3 * ROW, 1, 1e-5)] * 400)
    of.observed([Sample(Way.DIRECT, 3 * ROW, 12, 0.5)] * 400)
    assert staged(of, "b", [1, 3, 5]) is not None


class Machine(RuleBasedStateMachine):
    """Any requests that begin, are preempted, end well, end badly and are fetched: the pool holds what is held."""

    def __init__(self) -> None:
        super().__init__()
        self.of = desk(slots=3, blocks=2, ranks=2)
        self.number = 0
        self.living: dict[str, Any] = {}
        self.slots: dict[str, Slot] = {}
        self.whole: set[str] = set()
        self.handed: dict[str, int] = {}

    @rule(tokens=st.integers(1, 5 * BLOCK))
    def begin(self, tokens: int) -> None:
        self.number += 1
        one = prompt(f"r{self.number}", tokens)
        self.living[one.request_id] = one
        self.of.allocated(one)
        self.of.blocks(one.request_id, range(-(-tokens // BLOCK)), whole=True)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.living)))
        one = self.living[name]
        tokens = data.draw(st.integers(1, max(1, one.num_prompt_tokens - one.num_computed_tokens)))
        step = self.of.step({name: tokens})
        one.num_computed_tokens += tokens
        for each, work in step.gather.items():
            assert self.slots.get(each, work.slot).offset == work.slot.offset
            self.slots[each] = work.slot
            self.whole.add(each)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.living)))
        self.living[name].num_computed_tokens = 0
        self.whole.discard(name)
        self.of.blocks(name, range(-(-self.living[name].num_prompt_tokens // BLOCK)), whole=True)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), well=st.booleans())
    def end(self, data: st.DataObject, well: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.living)))
        del self.living[name]
        delay, params = self.of.finished(name, well, answer([1]) if well else None)
        slot = self.slots.pop(name, None)
        if well and slot is not None and name in self.whole:
            assert params is not None
            assert (delay, params[STAGED_KEY]) == (False, slot.params())
            self.handed[name] = 2
            self.slots[name] = slot
        else:
            assert delay is well
            assert STAGED_KEY not in (params or {})

    @precondition(lambda self: self.handed)
    @rule(data=st.data())
    def fetched(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.handed)))
        self.of.sent({name: 1})
        self.handed[name] -= 1
        if not self.handed[name]:
            del self.handed[name], self.slots[name]

    @invariant()
    def the_pool_holds_what_is_held(self) -> None:
        held = sorted(self.slots.values(), key=lambda slot: slot.offset)
        assert self.of.used_bytes == sum(slot_bytes(slot.rows, ROW) for slot in held)
        assert all(left.end <= right.offset for left, right in pairwise(held))
        assert self.of.handed_out == len(self.handed)


def test_slots_come_back_whatever_happens() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None))
