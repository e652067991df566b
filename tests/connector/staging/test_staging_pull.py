"""Reading through a few chunks, over a transport that ends, fails and is written over as told."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvserving_connector.core.staging import Slot
from kvserving_connector.core.staging_pull import PATIENCE_SECONDS, Pipeline, Pull, State, TransportError

ROW = 8
CHUNK = 3 * ROW
STALL = 30.0


class Memory:
    """Both sides' memory and the reads between them: each ends, out of order, when ``finish`` says so."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.rows: dict[int, list[str]] = {}
        self.words: dict[int, tuple[int, int]] = {}
        self.chunks: dict[int, list[str]] = {}
        self.cells: dict[int, tuple[int, int]] = {}
        self.blocks: dict[int, str] = {}
        self.notified: list[bytes] = []
        self.flying: list[dict[str, Any]] = []
        self.posted = 0
        self.asked = 0
        self.fail_at: int | None = None
        self.fail_to_begin_at: int | None = None
        self.before_ending: Callable[[], None] = lambda: None

    def put(self, slot: Slot) -> None:
        self.rows[slot.offset] = [f"{slot.generation}.{row}" for row in range(slot.rows)]
        self.words[slot.offset] = (slot.generation, slot.generation)

    def finish(self, at_most: int = 1) -> None:
        """Let some of what is under way end."""
        for _ in range(at_most):
            waiting = [each for each in self.flying if not each["over"]]
            if not waiting:
                return
            self.before_ending()
            flight = self.random.choice(waiting)
            flight["over"] = True
            if not flight["bad"]:
                flight["effect"]()

    def _post(self, place: tuple[str, int], effect: Callable[[], None]) -> dict[str, Any]:
        assert not any(each["place"] == place for each in self.flying), f"{place} is used twice"
        self.posted += 1
        flight = {"place": place, "effect": effect, "over": False, "bad": False}
        self.flying.append(flight)
        return flight

    def _ask(self, place: tuple[str, int], effect: Callable[[], None]) -> dict[str, Any]:
        self.asked += 1
        if self.asked == self.fail_to_begin_at:
            raise TransportError("told not to begin")
        flight = self._post(place, effect)
        flight["bad"] = self.asked == self.fail_at
        return flight

    def read_header(self, pull: Pull, cell: int) -> Any:
        def effect() -> None:
            self.cells[cell] = self.words[pull.slot.offset]

        return self._ask(("cell", cell), effect)

    def read_rows(self, pull: Pull, first: int, count: int, chunk: int) -> Any:
        assert 1 <= count * ROW <= CHUNK

        def effect() -> None:
            self.chunks[chunk] = self.rows[pull.slot.offset][first : first + count]

        flight = self._ask(("chunk", chunk), effect)
        flight["pull"] = pull
        return flight

    def done(self, handle: dict[str, Any]) -> bool:
        if handle["over"] and handle["bad"]:
            raise TransportError("told to fail")
        if handle["over"]:
            self.flying.remove(handle)
        return bool(handle["over"])

    def settled(self, handle: dict[str, Any]) -> bool:
        if handle["over"] and handle in self.flying:
            self.flying.remove(handle)
        return bool(handle["over"])

    def generations(self, cell: int) -> tuple[int, int]:
        return self.cells.pop(cell)

    def scatter(self, pull: Pull, row: int, count: int, chunk: int) -> Any:
        rows = list(self.chunks.pop(chunk))
        assert len(rows) == count

        def effect() -> None:
            assert not pull.final, "a block is written after its pull has ended"
            self.blocks.update(zip(pull.blocks[row : row + count], rows, strict=True))

        return self._post(("chunk", chunk), effect)

    def scattered(self, handle: dict[str, Any]) -> bool:
        if handle["over"]:
            self.flying.remove(handle)
        return bool(handle["over"])

    def notify(self, pull: Pull) -> None:
        self.notified.append(pull.notify)


def pipeline(memory: Memory, chunks: int = 2, cells: int = 4) -> Pipeline:
    return Pipeline(memory, chunks=chunks, cells=cells, chunk_bytes=CHUNK, stall_seconds=STALL)


def pull(memory: Memory, number: int = 0, rows: int = 8, missing: int | None = None) -> Pull:
    slot = Slot(number * 1000, 10 + number, rows, ROW)
    memory.put(slot)
    wanted = rows if missing is None else missing
    return Pull("p", slot, [100 * number + row for row in range(wanted)], f"r{number}:1".encode())


def correct(memory: Memory, one: Pull) -> bool:
    rows = range(one.first, one.slot.rows)
    return [memory.blocks.get(block) for block in one.blocks] == [f"{one.slot.generation}.{row}" for row in rows]


def drive(pipe: Pipeline, memory: Memory, pulls: list[Pull], turns: int = 5000) -> None:
    now = 0.0
    for _ in range(turns):
        pipe.turn(now)
        memory.finish(memory.random.randint(0, 2))
        now += 0.001
        if all(one.final for one in pulls) and pipe.idle:
            return
    raise AssertionError([one.state for one in pulls])


@pytest.mark.parametrize("missing", [8, 3, 1])
def test_a_prompt_is_read_from_the_first_block_that_is_missing(missing: int) -> None:
    memory = Memory()
    one = pull(memory, missing=missing)
    pipe = pipeline(memory)
    pipe.submit(one, 0.0)
    drive(pipe, memory, [one])
    assert one.state is State.DONE
    assert correct(memory, one)
    assert one.bytes == missing * ROW
    assert memory.notified == [b"r0:1"]


@given(seed=st.integers(0, 2**32), chunks=st.integers(1, 5), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_any_order_of_endings_gives_the_same_blocks(seed: int, chunks: int, sizes: list[int]) -> None:
    memory = Memory(seed)
    pulls = [pull(memory, number, rows) for number, rows in enumerate(sizes)]
    pipe = pipeline(memory, chunks, cells=2)
    for one in pulls:
        pipe.submit(one, 0.0)
    drive(pipe, memory, pulls)
    assert all(one.state is State.DONE and correct(memory, one) for one in pulls)


def test_sixty_four_transfers_go_through_two_chunks() -> None:
    memory = Memory(5)
    pulls = [pull(memory, number, rows=1 + number % 20) for number in range(64)]
    pipe = pipeline(memory, chunks=2)
    for one in pulls:
        pipe.submit(one, 0.0)
    drive(pipe, memory, pulls, turns=50_000)
    assert all(one.state is State.DONE and correct(memory, one) for one in pulls)
    assert len(memory.notified) == 64
    assert max(one.waited for one in pulls) > 0


def one_alone() -> Memory:
    memory = Memory()
    one = pull(memory)
    pipe = pipeline(memory)
    pipe.submit(one, 0.0)
    drive(pipe, memory, [one])
    return memory


READS = range(1, one_alone().asked + 1)
STEPS = range(1, one_alone().posted + 1)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("what", ["fail_at", "fail_to_begin_at"])
def test_a_failure_of_any_read_fails_the_one_pull_and_no_other(read: int, what: str) -> None:
    memory = Memory(read)
    first, second = pull(memory, 0), pull(memory, 1)
    pipe = pipeline(memory)
    pipe.submit(first, 0.0)
    setattr(memory, what, read)
    drive(pipe, memory, [first])
    assert first.state is State.FAILED
    assert "told" in first.reason
    pipe.submit(second, 10.0)
    drive(pipe, memory, [second])
    assert correct(memory, second)


@pytest.mark.parametrize("step", STEPS)
def test_the_end_of_the_engine_at_any_step_ends_the_pull_after_its_last_copy(step: int) -> None:
    memory = Memory(step)
    one = pull(memory)
    pipe = pipeline(memory)
    pipe.submit(one, 0.0)
    now = 0.0
    while memory.posted < step and not one.final:
        pipe.turn(now)
        memory.finish()
        now += 0.001
    pipe.cancel("the engine ends")
    drive(pipe, memory, [one])
    assert one.final
    assert one.state is State.DONE or one.reason == "the engine ends"


@pytest.mark.parametrize("ending", range(len(STEPS)))
@pytest.mark.parametrize("seed", range(6))
def test_a_slot_that_is_written_over_at_any_moment_gives_no_wrong_block(ending: int, seed: int) -> None:
    """The other side's order: the old header's first word, rows, one after the other."""
    memory = Memory(seed)
    one = pull(memory)
    pipe = pipeline(memory)
    ended = [0]
    order = list(range(one.slot.rows))
    memory.random.shuffle(order)

    def overwrite() -> None:
        ended[0] += 1
        if ended[0] == ending + 1:
            memory.words[0] = (99, one.slot.generation)
        elif ended[0] > ending + 1 and order:
            memory.rows[0][order.pop()] = "wrong"

    memory.before_ending = overwrite
    pipe.submit(one, 0.0)
    drive(pipe, memory, [one])
    if one.state is State.DONE:
        assert correct(memory, one)
    else:
        assert "given to another prompt" in one.reason
        assert not memory.notified


def test_a_slot_that_is_not_whole_yet_is_waited_for() -> None:
    memory = Memory()
    one = pull(memory)
    memory.words[0] = (one.slot.generation, 3)
    whole = memory.rows[0]
    memory.rows[0] = ["old"] * one.slot.rows
    pipe = pipeline(memory)
    pipe.submit(one, 0.0)
    for turn in range(200):
        pipe.turn(turn / 1000)
        memory.finish()
    assert one.state is State.OPENING
    assert not memory.blocks
    memory.rows[0] = whole
    memory.words[0] = (one.slot.generation, one.slot.generation)
    now = 0.2
    while not one.final:
        pipe.turn(now)
        memory.finish()
        now += 0.001
    assert correct(memory, one)


def test_a_slot_that_never_is_fails() -> None:
    memory = Memory()
    one = pull(memory)
    memory.words[0] = (0, 0)
    pipe = pipeline(memory)
    pipe.submit(one, 0.0)
    now = 0.0
    while not one.final:
        pipe.turn(now)
        memory.finish()
        now += 0.5
    assert "did not hold it" in one.reason
    assert now > PATIENCE_SECONDS


def test_a_read_that_never_ends_costs_its_chunk_and_stops_nobody_else() -> None:
    memory = Memory()
    stuck, other = pull(memory, 0), pull(memory, 1, rows=12)
    pipe = pipeline(memory, chunks=2)
    pipe.submit(stuck, 0.0)
    pipe.submit(other, 0.0)
    now = 0.0
    held: dict[str, Any] | None = None
    while not (stuck.final and other.final):
        pipe.turn(now)
        if held is None:
            held = next((each for each in memory.flying if each["place"][0] == "chunk"), None)
        waiting = [each for each in memory.flying if each is not held and not each["over"]]
        for flight in waiting:
            flight["over"] = True
            flight["effect"]()
        now += 0.1
        assert now < 10 * STALL
    assert stuck.state is State.FAILED
    assert "nothing of it moved" in stuck.reason
    assert other.state is State.DONE
    assert correct(memory, other)
    assert other.ended < stuck.ended
    assert not pipe.idle
    assert held is not None
    held["over"] = True
    pipe.turn(now)
    assert pipe.idle


def test_a_pull_whose_every_read_hangs_leaves_chunks_to_others() -> None:
    memory = Memory()
    stuck, other = pull(memory, 0, rows=12), pull(memory, 1, rows=12)
    pipe = pipeline(memory, chunks=2)
    pipe.submit(stuck, 0.0)
    pipe.submit(other, 0.0)
    now = 0.0
    while not other.final:
        pipe.turn(now)
        for flight in [each for each in memory.flying if each.get("pull") is not stuck and not each["over"]]:
            flight["over"] = True
            flight["effect"]()
        now += 0.01
        assert now < STALL
    assert correct(memory, other)
    assert stuck.state is State.READING


def test_a_slow_read_does_not_fail_while_others_from_the_same_engine_arrive() -> None:
    """On a slow link every read takes long, and all wait for all."""
    memory = Memory(3)
    pulls = [pull(memory, number, rows=30) for number in range(4)]
    pipe = pipeline(memory, chunks=4)
    for one in pulls:
        pipe.submit(one, 0.0)
    now = 0.0
    while not all(one.final for one in pulls):
        pipe.turn(now)
        oldest = next((each for each in memory.flying if not each["over"]), None)
        if oldest is not None:
            oldest["over"] = True
            oldest["effect"]()
        now += 0.45 * STALL
    assert {one.state for one in pulls} == {State.DONE}
    assert all(correct(memory, one) for one in pulls)


def test_with_every_chunk_lost_a_pull_fails_instead_of_waiting_for_ever() -> None:
    memory = Memory()
    pulls = [pull(memory, number) for number in range(4)]
    pipe = pipeline(memory, chunks=2)
    for one in pulls:
        pipe.submit(one, 0.0)
    now = 0.0
    while not all(one.final for one in pulls):
        pipe.turn(now)
        for flight in [each for each in memory.flying if each["place"][0] == "cell"]:
            flight["over"] = True
            flight["effect"]()
        now += 1.0
        assert now < 10 * STALL
    assert {one.state for one in pulls} == {State.FAILED}


@pytest.mark.parametrize("wanted", [0, 9])
def test_blocks_that_the_slot_cannot_fill_fail_at_once(wanted: int) -> None:
    memory = Memory()
    one = pull(memory, missing=wanted)
    pipe = pipeline(memory)
    pipe.submit(one, 0.0)
    assert one.state is State.FAILED
    assert "cannot be filled" in one.reason
    assert pipe.idle


def test_a_row_larger_than_a_chunk_fails_at_once() -> None:
    memory = Memory()
    one = Pull("p", Slot(0, 1, 2, CHUNK + 1), [1, 2], b"r:1")
    pipe = pipeline(memory)
    pipe.submit(one, 0.0)
    assert one.state is State.FAILED
    assert "larger than a chunk" in one.reason
